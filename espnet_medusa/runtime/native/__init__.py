"""C++ kernels for decoder and encoder on a CPU: 8-bit weights and attention."""
