"""Readers of files from anybody, fed with bytes of no kind."""
