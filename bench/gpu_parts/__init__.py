"""Parts of ``gpu.py``: each a process of its own that writes a file of rows (``part.py``)."""
