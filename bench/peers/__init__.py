"""Contestants of ``compare.py``: Whisper decoders of other projects and ours, on one subject.

A subject (``subject.py``) is a folder with one decoder's weights in everybody's form and the audio
or memories to decode. A contestant (``contestant.py``) decodes memories; each runs in a process of
its own (``worker.py``) that is asked over a pipe (``client.py``).
"""
