"""Models between formats: ESPnet experiment, aiola's, Hugging Face's and CTranslate2's Whisper.

Each reader gives a ``Checkpoint``, each writer takes one, so every format goes to every other.
"""
