"""Contestants of ``compare.py``: Whisper programs and decoders of other projects, and ours.

A subject is a folder with one model in the format of each contestant, and inputs. Each contestant
has a process of its own (``worker.py``); drafters of a plan share one (``plan_client.py``).
"""
