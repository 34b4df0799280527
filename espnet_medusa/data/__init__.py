"""Modules that all other packages import: audio, Kaldi tables, files, options, errors."""
