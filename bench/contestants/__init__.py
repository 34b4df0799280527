"""Contestants of ``compare.py``: Whisper programs and decoders of other projects, and ours.

A subject (``subjects.py``) is a folder with one model in the format of each contestant and with
the inputs to decode. Each contestant (``base.py``) runs in a process of its own (``worker.py``),
which receives requests over a pipe (``client.py``). Drafters of a plan share one process
(``plan_client.py``).
"""
