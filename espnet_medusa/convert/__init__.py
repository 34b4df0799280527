"""Models between formats: ESPnet experiment, aiola's whisper-medusa, plain Hugging Face Whisper.

Each reader gives a ``Checkpoint``, each writer takes one, so every format goes to every other.
"""
