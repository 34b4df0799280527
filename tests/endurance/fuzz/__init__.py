"""Fuzzing of all readers of untrusted files."""
