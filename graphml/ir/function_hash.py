"""A hash of a Python function and of everything that it calls or reads, for caches of compiled code.

numba's own cache looks at the file of the function alone, and misses changes in helpers. Here each function
that is reached through globals, closures, modules, classes and instances counts by its byte code and
constants, and each value that it reads by its content. What belongs to numba, NumPy or the standard library
counts by its name: their versions are part of a cache's key. What belongs to modules that the caller covers
otherwise counts by its name and by the values that it was made with. Knows Python's functions; nothing of
kernels.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_LIBRARIES = frozenset(("numba", "numpy", "llvmlite", "math", "builtins", *sys.stdlib_module_names))
_FRAMEWORK = re.compile(r"graphml(_\w+)?(\.|$)")
"""Modules whose classes and instances count by name and text: they reach all of the framework."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass
class Reached:
    """What was found: the digest, and every function by its code, those that are called included.

    is_covered: whether the key of who asks covers the source of a module otherwise.
    """

    is_covered: Callable[[str], bool] = lambda module: False
    functions: list[FunctionType] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # so that no other object takes an id that was seen

    @property
    def hash(self) -> str:
        """Of all parts, in order."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()


def reached(function: Callable[..., Any], is_covered: Callable[[str], bool] | None = None) -> Reached:
    """The function, what it calls and what it reads."""
    found = Reached(is_covered) if is_covered else Reached()
    _add_value(found, function)
    return found


def _add_value(found: Reached, value: Any) -> None:
    if isinstance(value, str | bytes | int | float | complex | bool | None | np.generic | np.dtype):
        found.parts.append(repr(value).encode())
        return
    if id(value) in found.seen:
        found.parts.append(f"seen {found.seen[id(value)]}".encode())
        return
    found.seen[id(value)] = len(found.seen)
    found.kept.append(value)
    inner = _inner(value)
    if inner is not None:
        options = getattr(value, "targetoptions", {})
        found.parts.append(repr([(name, _ordered(options[name])) for name in sorted(options)]).encode())
        _add_value(found, inner)
    elif isinstance(value, FunctionType):
        _add_function(found, value)
    elif isinstance(value, functools.partial):
        _add_value(found, (value.func, value.args, value.keywords))
    elif isinstance(value, MethodType):
        _add_value(found, (value.__func__, value.__self__))
    elif isinstance(value, np.ndarray | set | frozenset | dict | tuple | list):
        _add_content(found, value)
    elif isinstance(value, type) and not _is_named(found, value.__module__):
        _add_class(found, value)
    elif hasattr(value, "__dict__") and not _is_named(found, type(value).__module__):
        _add_value(found, type(value))
        _add_value(found, vars(value))
    elif isinstance(value, ModuleType | type) or callable(value):
        name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        found.parts.append(f"{getattr(value, '__module__', '')}.{name}".encode())
    else:
        found.parts.append(_ADDRESS.sub("", repr(value)).encode())


def _add_content(found: Reached, value: Any) -> None:
    """What an array, a set, a dict or a sequence holds."""
    if isinstance(value, np.ndarray):
        found.parts.append(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, set | frozenset):
        found.parts.append(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, dict):
        found.parts.append(f"dict {len(value)}".encode())
        for key, item in value.items():
            found.parts.append(repr(key).encode())
            _add_value(found, item)
    else:
        found.parts.append(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            _add_value(found, item)


def _inner(value: Any) -> FunctionType | None:
    """The function in numba's functions and intrinsics, in cached ones and in others that wrap one."""
    if isinstance(value, FunctionType):
        return None
    for name in ("py_func", "_defn", "__wrapped__", "__func__", "fget"):
        inner = getattr(value, name, None) if not isinstance(value, type | MethodType) else None
        if isinstance(inner, FunctionType):
            return inner
    return None


def _is_named(found: Reached, module: str | None) -> bool:
    """Whether classes of a module, and their instances, count by name and text."""
    name = module or ""
    return is_library(name) or _FRAMEWORK.match(name) is not None or found.is_covered(name)


def _add_class(found: Reached, value: type) -> None:
    found.parts.append(f"class {value.__qualname__}".encode())
    _add_value(found, value.__bases__)
    for name, item in vars(value).items():
        if isinstance(item, FunctionType) or not name.startswith("__"):
            found.parts.append(name.encode())
            _add_value(found, item)


def _ordered(value: Any) -> Any:
    """A set as a list: its own order is another in each process."""
    return sorted(value) if isinstance(value, set | frozenset) else value


def is_library(module: str | None) -> bool:
    """Whether a module is numba's, NumPy's or the standard library's."""
    return (module or "").partition(".")[0] in _LIBRARIES


def _add_function(found: Reached, function: FunctionType) -> None:
    module = function.__module__
    if is_library(module) or found.is_covered(module or ""):
        found.parts.append(f"{module}.{function.__qualname__}".encode())
        if not is_library(module):
            _add_made_with(found, function)
        return
    found.functions.append(function)
    for code in codes_of(function.__code__):
        found.parts.append(code.co_code)
        found.parts.append(repr([code.co_names, code.co_varnames, code.co_freevars]).encode())
        for constant in code.co_consts:
            if not isinstance(constant, CodeType):
                _add_value(found, constant)
    _add_made_with(found, function)
    attributes = [name for code in codes_of(function.__code__) for name in code.co_names]
    for name in global_names(function):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        found.parts.append(name.encode())
        if isinstance(value, ModuleType):
            _add_module(found, value, dict.fromkeys(attributes), ())
        else:
            _add_value(found, value)


def _add_made_with(found: Reached, function: FunctionType) -> None:
    """Defaults of parameters, and what the functions around it have left in it."""
    _add_value(found, function.__defaults__)
    _add_value(found, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            _add_value(found, cell.cell_contents)
        except ValueError:
            found.parts.append(b"empty")


def _add_module(
    found: Reached, module: ModuleType, attributes: dict[str, None], above: tuple[ModuleType, ...]
) -> None:
    """A module by name, and of what the function's attributes may mean in it the content."""
    found.parts.append(module.__name__.encode())
    if is_library(module.__name__) or module in above:
        return
    for attribute in attributes:
        if hasattr(module, attribute):
            found.parts.append(attribute.encode())
            value = getattr(module, attribute)
            if isinstance(value, ModuleType):
                _add_module(found, value, attributes, (*above, module))
            else:
                _add_value(found, value)


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
