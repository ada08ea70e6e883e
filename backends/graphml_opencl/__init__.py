"""The OpenCL backend: kernels as OpenCL C on any device of version 1.2 or newer.

Importing it needs no pyopencl.
"""

from graphml_opencl.backend import BACKEND

__all__ = ["BACKEND"]
