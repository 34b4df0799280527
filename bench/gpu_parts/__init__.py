"""Parts of ``gpu.py``. Each is a process of its own that writes a file of rows (``part.py``)."""
