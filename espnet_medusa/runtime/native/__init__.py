"""Kernels of our own for decoder calls on a CPU: 8-bit weights, attention over the memory."""
