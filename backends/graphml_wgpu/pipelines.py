"""Kernels as compute pipelines, each text once, and the bind groups of their arguments."""

from __future__ import annotations

from typing import Any

from graphml_gpu.buffers import raw
from graphml_gpu.driver import Bound, compile_error, writable
from graphml_gpu.language import Specialised

from graphml import settings
from graphml.errors import BackendError

Access = tuple[bool, ...]
"""Of each buffer argument: whether it is bound as one that is written."""


class Pipelines:
    """The pipelines of a device. Kernels whose buffers are bound alike share a layout.

    lavapipe: write kernels as Mesa's driver of the processor wants them. Scalars are in a storage buffer: it
    works the numbers of uniform buffers into kernels with loops, again at every dispatch, 2 ms and half a
    megabyte that it does not give back (Mesa 22.3). Loops are `rolled`: it would unroll them.
    """

    def __init__(self, device: Any, lavapipe: bool = False) -> None:
        self._device, self._lavapipe = device, lavapipe
        self._most_stored = device.limits["max-storage-buffers-per-shader-stage"]
        self._layouts: dict[Access, tuple[Any, Any]] = {}
        self._by_kernel: dict[tuple[Specialised, frozenset[str]], Any] = {}
        self._by_text: dict[tuple[str, str], Any] = {}

    def call(self, bound: Bound) -> tuple[Any, Any]:
        """The pipeline and bind group of a kernel with its arguments."""
        shared = writable(bound)
        key = bound.kernel, shared
        pipeline = self._by_kernel.get(key)
        if pipeline is None:
            pipeline = self._by_kernel[key] = self._pipeline(bound.kernel, shared)
        return pipeline, self._bind_group(bound, shared)

    def _pipeline(self, kernel: Specialised, shared: frozenset[str]) -> Any:
        access = _access(kernel, shared)
        stored = self._scalars(access) != "uniform"
        text = kernel.wgsl(shared, stored, rolls=self._lavapipe)
        key = kernel.name, text
        if key not in self._by_text:
            _, layout = self._layout(access)
            self._by_text[key] = compiled(self._device, kernel, text, layout)
        return self._by_text[key]

    def _scalars(self, access: Access) -> str:
        return "read-only-storage" if self._lavapipe and len(access) < self._most_stored else "uniform"

    def _layout(self, access: Access) -> tuple[Any, Any]:
        """Layouts of the bind group and the pipeline; the struct of the scalars comes last."""
        if access not in self._layouts:
            kinds = ["storage" if written else "read-only-storage" for written in access]
            kinds.append(self._scalars(access))
            entries = [
                {"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            group = self._device.create_bind_group_layout(entries=entries)
            self._layouts[access] = group, self._device.create_pipeline_layout(bind_group_layouts=[group])
        return self._layouts[access]

    def _bind_group(self, bound: Bound, shared: frozenset[str]) -> Any:
        group, _ = self._layout(_access(bound.kernel, shared))
        ranges = (*bound.buffers, bound.scalars)
        entries = [
            {"binding": i, "resource": {"buffer": raw(buffer), "offset": offset, "size": n_bytes}}
            for i, (buffer, offset, n_bytes) in enumerate(ranges)
        ]
        return self._device.create_bind_group(label=bound.kernel.name, layout=group, entries=entries)


def _access(kernel: Specialised, shared: frozenset[str]) -> Access:
    return tuple(argument.writes or argument.name in shared for argument in kernel.buffers)


def compiled(device: Any, kernel: Specialised, text: str, layout: Any) -> Any:
    """The pipeline of a text; `BackendError` with the numbered text if it cannot be compiled."""
    import wgpu

    try:
        module = _module(device, kernel.name, text)
        return device.create_compute_pipeline(
            label=kernel.name, layout=layout, compute={"module": module, "entry_point": kernel.name}
        )
    except (wgpu.GPUError, RuntimeError) as error:
        raise compile_error(kernel, text, str(error)) from error


def _module(device: Any, name: str, text: str) -> Any:
    """A shader module. wgpu's own checks of bounds and loops are left out unless GRAPHML_VERIFY is set.

    Kernels are ours, and tested with an emulator that checks every index; the checks cost an instruction or
    two for each load and each turn of a loop. wgpu-py has no name for this, so the description is made here.
    """
    if settings.verify():
        return device.create_shader_module(label=name, code=text)
    from wgpu.backends.wgpu_native import GPUShaderModule, _api

    ffi, code = _api.ffi, text.encode()
    held = ffi.new("char[]", code), ffi.new("char[]", name.encode())
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = _api.lib.WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = held[0], len(code)
    description = ffi.new("WGPUShaderModuleDescriptor *")
    description.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    description.label.data, description.label.length = held[1], len(name.encode())
    none = _api.lib.WGPUShaderRuntimeChecks_None
    handle = _api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, description, none)
    if handle == ffi.NULL:
        raise BackendError(f"kernel {name}: wgpu makes no shader module of it")
    return GPUShaderModule(name, handle, device)
