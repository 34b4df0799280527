"""Conversion between ESPnet experiments and aiola's, Hugging Face's and CTranslate2's Whisper.

Each reader returns a ``Checkpoint`` and each writer takes one, so every pair of formats works.
"""
