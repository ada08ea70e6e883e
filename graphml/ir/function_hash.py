"""A hash of a Python function and of everything that it calls or reads, for caches of compiled code.

numba's own cache looks at the file of the function alone, and misses changes in helpers. Here each function
that is reached through globals, closures and modules counts by its byte code and constants, and each global
value that it reads by its content. What belongs to numba, NumPy or the standard library counts by its name:
their versions are part of a cache's key. Knows Python's functions; nothing of kernels.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_LIBRARIES = frozenset(("numba", "numpy", "llvmlite", "math", "builtins", *sys.stdlib_module_names))


@dataclass
class Reached:
    """What was found: the digest, and every function by its code, those that are called included."""

    functions: list[FunctionType] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    kept: list[Any] = field(default_factory=list)  # so that no other object takes an id that was seen

    @property
    def hash(self) -> str:
        """Of all parts, in order."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()


def reached(function: Callable[..., Any]) -> Reached:
    """The function, what it calls and what it reads."""
    found = Reached()
    _add_value(found, function)
    return found


def _add_value(found: Reached, value: Any) -> None:
    if isinstance(value, str | bytes | int | float | complex | bool | None | np.generic | np.dtype):
        found.parts.append(repr(value).encode())
        return
    if id(value) in found.seen:
        found.parts.append(b"seen")
        return
    found.seen.add(id(value))
    found.kept.append(value)
    inner = getattr(value, "py_func", None) or getattr(value, "_defn", None)  # numba's functions, intrinsics
    if isinstance(inner, FunctionType):
        options = getattr(value, "targetoptions", {})
        found.parts.append(repr([(name, _ordered(options[name])) for name in sorted(options)]).encode())
        _add_value(found, inner)
    elif isinstance(value, FunctionType):
        _add_function(found, value)
    elif isinstance(value, np.ndarray):
        found.parts.append(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, set | frozenset):
        found.parts.append(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, dict):
        for key, item in value.items():
            found.parts.append(repr(key).encode())
            _add_value(found, item)
    elif isinstance(value, tuple | list):
        found.parts.append(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            _add_value(found, item)
    elif isinstance(value, ModuleType | type) or callable(value):
        name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        found.parts.append(f"{getattr(value, '__module__', '')}.{name}".encode())
    else:
        found.parts.append(repr(value).encode())


def _ordered(value: Any) -> Any:
    """A set as a list: its own order is another in each process."""
    return sorted(value) if isinstance(value, set | frozenset) else value


def is_library(module: str | None) -> bool:
    """Whether a module is numba's, NumPy's or the standard library's."""
    return (module or "").partition(".")[0] in _LIBRARIES


def _add_function(found: Reached, function: FunctionType) -> None:
    if is_library(function.__module__):
        found.parts.append(f"{function.__module__}.{function.__qualname__}".encode())
        return
    found.functions.append(function)
    for code in codes_of(function.__code__):
        constants = [c for c in code.co_consts if not isinstance(c, CodeType)]
        found.parts.append(code.co_code)
        found.parts.append(repr([constants, code.co_names, code.co_varnames, code.co_freevars]).encode())
    found.parts.append(repr(function.__defaults__).encode())
    for cell in function.__closure__ or ():
        _add_value(found, cell.cell_contents)
    attributes = [name for code in codes_of(function.__code__) for name in code.co_names]
    for name in global_names(function):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        found.parts.append(name.encode())
        _add_value(found, value)
        if isinstance(value, ModuleType) and not is_library(value.__name__):
            for attribute in dict.fromkeys(attributes):
                if hasattr(value, attribute):
                    found.parts.append(attribute.encode())
                    _add_value(found, getattr(value, attribute))


def global_names(function: FunctionType) -> list[str]:
    """The global names that a function reads, once each."""
    found: dict[str, None] = {}
    for code in codes_of(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found[instruction.argval] = None
    return list(found)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def raising_line(function: FunctionType) -> int | None:
    """The line of a `raise` or `assert` in a function; None where there is none."""
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname == "RAISE_VARARGS":
            place = instruction.positions
            return (place.lineno if place else None) or function.__code__.co_firstlineno
    return None
