"""The launches of a step as one native call: a loop over arrays of kernels and sizes, compiled by LLVM.

pyopencl asks for an event with every launch, which drivers make and keep up to date, and wraps it in Python.
Here nobody wants one. Knows addresses; nothing of what is launched.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

_TEXT = """
define i64 @launch(ptr %enqueue, ptr %queue, ptr %kernels, ptr %global, ptr %local, i64 %n, ptr %status) {
entry:
  %some = icmp ne i64 %n, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [0, %entry], [%next, %after]
  %kernel_at = getelementptr ptr, ptr %kernels, i64 %i
  %kernel = load ptr, ptr %kernel_at
  %size = getelementptr [3 x i64], ptr %global, i64 %i
  %group = getelementptr [3 x i64], ptr %local, i64 %i
  %y_at = getelementptr i64, ptr %size, i64 1
  %z_at = getelementptr i64, ptr %size, i64 2
  %x = load i64, ptr %size
  %y = load i64, ptr %y_at
  %z = load i64, ptr %z_at
  %has_x = icmp ne i64 %x, 0
  %has_y = icmp ne i64 %y, 0
  %has_z = icmp ne i64 %z, 0
  %has_xy = and i1 %has_x, %has_y
  %has = and i1 %has_xy, %has_z
  br i1 %has, label %run, label %after
run:
  %result = call i32 %enqueue(ptr %queue, ptr %kernel, i32 3, ptr null, ptr %size, ptr %group,
                              i32 0, ptr null, ptr null)
  %well = icmp eq i32 %result, 0
  br i1 %well, label %after, label %failed
failed:
  store i32 %result, ptr %status
  br label %done
after:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %body, label %done
done:
  %launched = phi i64 [0, %entry], [%i, %failed], [%next, %after]
  ret i64 %launched
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


@functools.cache
def _launch() -> Any:
    """The loop, with its first argument: the function of the library that pyopencl itself uses."""
    import pyopencl._cl

    # Windows does not look for a function in the libraries that a library needs.
    library = ctypes.CDLL("OpenCL.dll" if os.name == "nt" else pyopencl._cl.__file__)
    enqueue = ctypes.cast(library.clEnqueueNDRangeKernel, ctypes.c_void_p)
    pointers = [ctypes.c_void_p] * 5
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *pointers, ctypes.c_int64, ctypes.c_void_p)
    return functools.partial(kind(_engine().get_function_address("launch")), enqueue)


def launch(queue: int, kernels: Words, sizes: Words, groups: Words) -> tuple[int, int]:
    """Enqueue kernels in order: how many were, and the error of the one behind them, 0 if it was all.

    queue, kernels [n]: the library's handles; sizes, groups [n, 3]: invocations in all and of a workgroup.
    Those without any are left out.
    """
    status = ctypes.c_int32(0)
    addresses = kernels.ctypes.data, sizes.ctypes.data, groups.ctypes.data
    done = _launch()(queue, *addresses, len(kernels), ctypes.byref(status))
    return done, status.value
