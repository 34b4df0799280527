"""Fixtures of ``data_dirs``."""

from data_dirs import folder, make_data_dir  # noqa: F401
