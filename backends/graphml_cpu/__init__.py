"""The CPU backend: numba kernels on SIMD vectors, a tape of calls, own worker threads.

Importing it starts no thread and needs no numba.
"""

from graphml_cpu.backend import BACKEND

__all__ = ["BACKEND"]
