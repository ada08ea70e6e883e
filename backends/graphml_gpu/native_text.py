"""A function in LLVM's language as machine code, for loops over handles. Knows no function in particular."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def _engine(text: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=1, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    return engine


def address_of(text: str, name: str) -> int:
    """Where function `name` of a text is; each text is compiled once."""
    return int(_engine(text).get_function_address(name))
