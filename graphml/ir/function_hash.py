"""A hash of a Python function and of everything that it calls or reads, for caches of compiled code.

numba's own cache looks at the file of the function alone, and misses changes in helpers. Here each function
that is reached through globals, closures, defaults and modules counts by its byte code and constants, each
value that it reads by its content, a class by its attributes. What belongs to numba, NumPy or the standard
library counts by its name: their versions are part of a cache's key. What belongs to modules that the caller
covers otherwise counts by its name and by the values that it was made with. The hash of equal text is equal
in each process: sets are sorted, and addresses are left out. Knows Python's functions; nothing of kernels.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_LIBRARIES = frozenset(("numba", "numpy", "llvmlite", "math", "builtins", *sys.stdlib_module_names))
_SCALARS = (str, bytes, int, float, complex, bool, type(None), type(...), np.generic, np.dtype)
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_UNUSED = frozenset(  # of a class: what says nothing of what it computes
    ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__",
     "__static_attributes__", "__slotnames__", "__abstractmethods__", "_abc_impl")
)  # fmt: skip


@dataclass
class Reached:
    """What was reached.

    is_covered: whether the key of who asks covers the source of a module otherwise. functions: the function
    and those that it calls. methods: of classes that it names. parts: of the digest. seen: id -> number, in
    order of first sight. kept: keeps these ids from being taken by others.
    """

    is_covered: Callable[[str], bool] = lambda module: False
    functions: list[FunctionType] = field(default_factory=list)
    methods: list[FunctionType] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    @property
    def hash(self) -> str:
        """Of all parts, in order."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def add(self, text: object) -> None:
        """One more part."""
        self.parts.append(str(text).encode())

    def is_named(self, module: str) -> bool:
        """Whether a class of a module says what it is by its name."""
        return is_library(module) or module.partition(".")[0] == "graphml" or self.is_covered(module)


def reached(function: Callable[..., Any], is_covered: Callable[[str], bool] | None = None) -> Reached:
    """The function, what it calls and what it reads."""
    reached = Reached(is_covered) if is_covered else Reached()
    _add_value(reached, function)
    return reached


def _add_value(reached: Reached, value: Any) -> None:
    if isinstance(value, enum.Enum):
        _add_items(reached, [type(value), value.name, value.value])
        return
    if isinstance(value, _SCALARS):
        reached.add(f"{type(value).__name__} {value!r}")
        return
    reached.add(type(value).__name__)
    if isinstance(value, tuple | frozenset):  # a constant may be one object or two equal ones
        _add_items(reached, value if isinstance(value, tuple) else _sorted(value))
        return
    number = reached.seen.setdefault(id(value), len(reached.seen))
    if number < len(reached.kept):
        reached.add(f"seen {number}")
        return
    reached.kept.append(value)
    if isinstance(value, FunctionType):
        _add_function(reached, value)
    elif isinstance(value, ModuleType):
        reached.add(value.__name__)
    elif isinstance(value, type):
        _add_class(reached, value)
    else:
        _add_content(reached, value)


def _add_content(reached: Reached, value: Any) -> None:
    """What a container holds; of any other object what it is made of."""
    if isinstance(value, np.ndarray):
        reached.add(f"{value.dtype}{value.shape}")
        if value.dtype.hasobject:
            _add_items(reached, value.ravel().tolist())
        else:
            reached.parts.append(value.tobytes())
    elif isinstance(value, bytearray | memoryview):
        reached.parts.append(bytes(value))
    elif isinstance(value, dict | MappingProxyType):
        _add_items(reached, [part for item in value.items() for part in item])
    elif isinstance(value, list | deque):
        _add_items(reached, value)
    elif isinstance(value, set):
        _add_items(reached, _sorted(value))
    else:
        _add_object(reached, value)


def _add_items(reached: Reached, values: Iterable[Any]) -> None:
    values = list(values)
    reached.add(len(values))
    for item in values:
        _add_value(reached, item)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """In an order that is the same in each process."""
    return sorted(values, key=lambda item: (type(item).__name__, _without_address(item)))


def _without_address(value: Any) -> str:
    return _ADDRESS.sub("", repr(value))


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return f"{getattr(value, '__module__', '')}.{name}"


def _add_object(reached: Reached, value: Any) -> None:
    """Any other object: by the functions in it, or by its class and its attributes."""
    inner = _functions_in(reached, value)
    if inner:
        options = getattr(value, "targetoptions", None)  # numba's
        _add_items(reached, [*inner, options if isinstance(options, dict) else None])
        return
    kind = type(value)
    if reached.is_named(kind.__module__) and kind is not SimpleNamespace:
        reached.add(_name_of(value) if callable(value) else "")
        reached.add(_without_address(value))
        return
    _add_value(reached, kind)
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if hasattr(value, name)]
    attributes = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
    _add_items(reached, sorted(attributes.items()))


def _functions_in(reached: Reached, value: Any) -> list[Any]:
    """What an object calls: numba's functions, ops, methods, properties, partial functions."""
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if not reached.is_named(type(value).__module__):
        return []
    written = getattr(value, "written", None)  # of an op
    if isinstance(written, tuple):
        return list(written)
    stencil = getattr(getattr(value, "kernel_ir", None), "func_id", value)
    names = ("py_func", "_defn", "__wrapped__", "__func__", "func", "pyfunc")
    inner = [getattr(stencil, name, None) for name in names]
    return [function for function in inner if isinstance(function, FunctionType)][:1]


def _add_class(reached: Reached, kind: type) -> None:
    reached.add(_name_of(kind))
    if reached.is_named(kind.__module__):
        return
    _add_items(reached, kind.__bases__)
    if issubclass(kind, enum.Enum):
        _add_items(reached, [(name, member.value) for name, member in kind.__members__.items()])
    compiled = getattr(kind, "class_type", None)  # numba's jitclass
    methods = getattr(compiled, "jit_methods", None)
    if isinstance(methods, dict):
        _add_items(reached, [methods, str(getattr(compiled, "struct", ""))])
        return
    called = len(reached.functions)
    hidden = _UNUSED if not issubclass(kind, enum.Enum) else {*_UNUSED, *kind.__members__}
    _add_items(reached, [item for item in sorted(vars(kind).items()) if item[0] not in hidden])
    reached.methods += reached.functions[called:]
    del reached.functions[called:]


def is_library(module: str | None) -> bool:
    """Whether a module is numba's, NumPy's or the standard library's."""
    return (module or "").partition(".")[0] in _LIBRARIES


def _add_function(reached: Reached, function: FunctionType) -> None:
    if is_library(function.__module__):
        reached.add(_name_of(function))
        return
    attributes = dict.fromkeys(name for code in codes_of(function.__code__) for name in code.co_names)
    modules: set[str] = set()
    if reached.is_covered(function.__module__ or ""):
        reached.add(_name_of(function))
        _add_made_with(reached, function, attributes, modules)
        return
    reached.functions.append(function)
    for code in codes_of(function.__code__):
        reached.parts += [code.co_code, code.co_exceptiontable]
        reached.add([code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags])
        reached.add([code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount])
        _add_items(reached, [constant for constant in code.co_consts if not isinstance(constant, CodeType)])
    _add_made_with(reached, function, attributes, modules)
    for name in global_names(function):
        if name in function.__globals__:
            reached.add(name)
            _add_read(reached, function.__globals__[name], attributes, modules)


def _add_made_with(
    reached: Reached, function: FunctionType, attributes: Iterable[str], modules: set[str]
) -> None:
    """Defaults of parameters, and what the functions around it have left in it."""
    _add_value(reached, function.__defaults__)
    _add_value(reached, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            reached.add("empty")
        else:
            _add_read(reached, content, attributes, modules)


def _add_read(reached: Reached, value: Any, attributes: Iterable[str], modules: set[str]) -> None:
    """A value that a function reads; of a module the attributes that it uses, in modules within it too."""
    _add_value(reached, value)
    if not isinstance(value, ModuleType) or is_library(value.__name__) or value.__name__ in modules:
        return
    modules.add(value.__name__)
    for name in attributes:
        if hasattr(value, name):
            reached.add(name)
            _add_read(reached, getattr(value, name), attributes, modules)


def global_names(function: FunctionType) -> list[str]:
    """The global names that a function reads, once each."""
    names: dict[str, None] = {}
    for code in codes_of(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names[instruction.argval] = None
    return list(names)


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
