"""The CPU backend: kernels on SIMD vectors, a tape of calls, own worker threads.

Importing it starts no thread and compiles nothing.
"""

from graphml_cpu.backend import BACKEND

__all__ = ["BACKEND"]
