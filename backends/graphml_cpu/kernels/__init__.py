"""Kernels of the CPU backend, grouped by family."""
