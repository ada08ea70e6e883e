"""The calls of a compute pass as one native call: a loop over arrays of handles, compiled by LLVM.

From Python each dispatch costs three calls through cffi, 1.1 us, each of which gives the interpreter's lock
away and takes it again: threads that encode would get into each other's way. Knows addresses of functions;
nothing of what is dispatched.
"""

from __future__ import annotations

import functools
from typing import Any

_TEXT = """
define void @encode(ptr %set_pipeline, ptr %set_bind_group, ptr %dispatch, ptr %pass, ptr %calls, ptr %groups,
                    i64 %n) {
entry:
  %some = icmp ne i64 %n, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [0, %entry], [%next, %after]
  %last = phi ptr [null, %entry], [%latest, %after]
  %call = getelementptr [2 x ptr], ptr %calls, i64 %i
  %pipeline = load ptr, ptr %call
  %group_at = getelementptr ptr, ptr %call, i64 1
  %bind_group = load ptr, ptr %group_at
  %grid = getelementptr [3 x i32], ptr %groups, i64 %i
  %y_at = getelementptr i32, ptr %grid, i64 1
  %z_at = getelementptr i32, ptr %grid, i64 2
  %x = load i32, ptr %grid
  %y = load i32, ptr %y_at
  %z = load i32, ptr %z_at
  %has_x = icmp ne i32 %x, 0
  %has_y = icmp ne i32 %y, 0
  %has_z = icmp ne i32 %z, 0
  %has_xy = and i1 %has_x, %has_y
  %has = and i1 %has_xy, %has_z
  br i1 %has, label %run, label %after
run:
  %same = icmp eq ptr %pipeline, %last
  br i1 %same, label %bind, label %set
set:
  call void %set_pipeline(ptr %pass, ptr %pipeline)
  br label %bind
bind:
  call void %set_bind_group(ptr %pass, i32 0, ptr %bind_group, i64 0, ptr null)
  call void %dispatch(ptr %pass, i32 %x, i32 %y, i32 %z)
  br label %after
after:
  %latest = phi ptr [%last, %body], [%pipeline, %bind]
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %body, label %done
done:
  ret void
}
"""


@functools.cache
def _engine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=1, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_TEXT), machine)
    engine.finalize_object()
    return engine


class DispatchLoop:
    """Encodes dispatches into a pass. Calls leave the interpreter's lock free while they run.

    lib, ffi: of wgpu-native. Safe from several threads, each with a pass of its own.
    """

    def __init__(self, lib: Any, ffi: Any) -> None:
        signature = "void(*)(void *, void *, void *, void *, void *, void *, uint64_t)"
        self._encode = ffi.cast(signature, _engine().get_function_address("encode"))
        names = "SetPipeline", "SetBindGroup", "DispatchWorkgroups"
        self._functions = [
            ffi.cast("void *", ffi.addressof(lib, f"wgpuComputePassEncoder{name}")) for name in names
        ]

    def __call__(self, compute: Any, calls: Any, groups: Any, n: int) -> None:
        """calls: n pairs of a pipeline's and a bind group's handle; groups: n triples of uint32, addresses.

        Those without groups are left out.
        """
        self._encode(*self._functions, compute, calls, groups, n)
