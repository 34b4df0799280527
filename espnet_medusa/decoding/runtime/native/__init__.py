"""C++ kernels for decoder and encoder on a CPU: 8-bit or bfloat16 weights, and attention."""
