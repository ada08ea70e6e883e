"""A kernel's factory -> LLVM modules: the kernel's function and its entry, which reads a parameter block.

Knows the annotations of kernels (`graphml_cpu.compiler`) by their names; nothing of machine code or files.
"""

from __future__ import annotations

import typing
from typing import Any

from graphml.errors import BackendError
from graphml_cpu import kernel_cache
from graphml_cpu.kernel_cache import KernelRef

KINDS = ("address", "int", "float", "dim", "run_address", "code")
"""How a slot of the parameter block is read, as annotations say it."""


def module_texts(ref: KernelRef) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]:
    """LLVM modules (the entry, the kernel, what that calls), the entry's symbol, the parameters."""
    from graphml_cpu import frontend  # which the warm path does without

    function = kernel_cache.function_of(ref)
    parameters = _parameters(ref, function)
    kinds = ["int", "int", *(kind for _, kind in parameters)]
    text, inner = frontend.lower(function, tuple("float32" if kind == "float" else "int64" for kind in kinds))
    symbol = kernel_cache.symbol_of(ref)
    entry = _entry(symbol, inner, [kind for _, kind in parameters])
    return (f"{entry}\n{text}",), symbol, parameters


def _parameters(ref: KernelRef, function: Any) -> tuple[tuple[str, str], ...]:
    """(name, kind) of every parameter after `ith` and `nth`, from the annotations."""
    hints = typing.get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    names = list(function.__code__.co_varnames[: function.__code__.co_argcount])
    if names[:2] != ["ith", "nth"]:
        raise BackendError(f"kernel {ref.name}: its first parameters must be ith and nth, not {names[:2]}")
    parameters = []
    for name in names[2:]:
        kind = getattr(hints.get(name), "__metadata__", (None,))[0]
        if kind not in KINDS:
            raise BackendError(
                f"kernel {ref.name}: parameter {name} needs one of the annotations Address, Int, Float, Dim, "
                f"RunAddress, Code; it has {hints.get(name)}"
            )
        parameters.append((name, str(kind)))
    return tuple(parameters)


def _entry(symbol: str, inner: str, kinds: list[str]) -> str:
    """LLVM IR of `void symbol(i64 block, i64 ith, i64 nth)`: reads the slots, calls the kernel's function."""
    lines = ["  %block = inttoptr i64 %block_address to ptr"]
    arguments = ["i64 %ith", "i64 %nth"]
    for slot, kind in enumerate(kinds):
        at, value = f"%slot{slot}", f"%value{slot}"
        lines.append(f"  {at} = getelementptr i64, ptr %block, i64 {slot}")
        if kind == "float":
            lines.append(f"  {value} = load float, ptr {at}, align 8")
        elif kind in ("dim", "run_address"):
            lines.append(f"  %where{slot} = load ptr, ptr {at}, align 8")
            lines.append(f"  {value} = load i64, ptr %where{slot}, align 8")
        else:
            lines.append(f"  {value} = load i64, ptr {at}, align 8")
        arguments.append(f"{'float' if kind == 'float' else 'i64'} {value}")
    body = "\n".join(lines)
    head = f"define void @{symbol}(i64 %block_address, i64 %ith, i64 %nth)"
    return f'{head} {{\nentry:\n{body}\n  call void @"{inner}"({", ".join(arguments)})\n  ret void\n}}\n'
