"""The wgpu backend: kernels as WGSL on Vulkan, Metal and DX12 adapters.

Importing it needs no wgpu.
"""

from graphml_wgpu.backend import BACKEND

__all__ = ["BACKEND"]
