"""Kernels over arrays -> machine code, by numba: entries that a tape calls by address, kept on disk.

The entry makes arrays of the addresses and sizes in the parameter block, and calls the function on this
thread's range of rows. No interpreter, no lock: a function with `raise` or `assert` is refused, an exception
of numba's own, for shapes that do not fit, say, leaves a word that makes the step fail. Division is NumPy's,
indices are not checked.

The cache: `<cache folder>/array_kernels/<versions and processor>/<name>-<hash>.kernel`; the hash covers the
function, all that it calls and reads (`function_hash`), the types of the arguments and the options. Code that
has an address in it, of a global array that is large or strided, is not kept. Compiled code is loaded only
from a folder that nobody else can write. Imports numba, so it is imported where such a
kernel is used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import os
import re
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import carray
from numba import types as kinds
from numba.core import cgutils, codegen
from numba.core.bytecode import FunctionIdentity
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from graphml import settings
from graphml.errors import BackendError
from graphml.ir.function_hash import codes_of, global_names, is_library, raising_line, reached
from graphml.system import cache_access
from graphml_cpu.array_kernels.reference import RAISED, ROWS, ArrayKernelRef, dim_slot
from graphml_cpu.compiler import LoadedKernel

KEPT_FILES = 2048
_MAGIC = "graphml-array-kernel-2"
_ENTRY = kinds.void(kinds.int64, kinds.int64, kinds.int64)
_lock = threading.RLock()
_loaded: dict[str, LoadedKernel] = {}
_kept_libraries: list[Any] = []  # their code lives as long as they do

# numba counts functions from 1 in each process and names machine code by that number: kernels kept by several
# processes would take each other's functions where one process loads them all.
FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little") + 1)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing_context: Any, address: Any) -> Any:
    """The address as a pointer, for `carray`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return kinds.voidptr(kinds.int64), generate


def compile_array_kernels(
    refs: Iterable[ArrayKernelRef], progress: Callable[[int, int], None] | None = None
) -> dict[ArrayKernelRef, LoadedKernel]:
    """Each kernel by its reference, from this process, the cache or compiled.

    Raises `BackendError` for a function that numba cannot compile, with the author's file and line.
    """
    wanted = list(dict.fromkeys(refs))
    with _lock:
        keys = {ref: _key(ref) for ref in wanted}
        new = [ref for ref in wanted if keys[ref] not in _loaded]
        folder = _usable_folder() if new else None
        for done, ref in enumerate(new, 1):
            key = keys[ref]
            if key not in _loaded:  # two references may be of one function
                address = _from_file(folder, key) or _compiled(ref, key, folder)
                _loaded[key] = LoadedKernel(ref.name, address, ref.slots)
            if progress is not None:
                progress(done, len(new))
        return {ref: LoadedKernel(ref.name, _loaded[keys[ref]].address, ref.slots) for ref in wanted}


def _key(ref: ArrayKernelRef) -> str:
    """The name of the kernel's file: the function's name, and a hash of what decides about its code."""
    dependencies = reached(ref.function)
    for function in dependencies.functions:
        line = raising_line(function)
        if line is not None:
            where = f"{function.__code__.co_filename}:{line}"
            raise BackendError(
                f"kernel {ref.name}: {where}: {function.__name__} has a raise or assert, and compiled code "
                "has nobody to raise to; check what may be wrong in the op's shape rule"
            )
    arrays = [(slot.name, slot.dtype, slot.n_dims, slot.moves) for slot in ref.arrays]
    what = repr([dependencies.hash, arrays, ref.numbers, ref.constants, ref.options])
    name = re.sub(r"[^A-Za-z0-9]+", "_", ref.function.__name__)[:40]
    return f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:24]}"


# --- compiling


def _compiled(ref: ArrayKernelRef, key: str, folder: Path | None) -> int:
    options = {name: set(option) if isinstance(option, tuple) else option for name, option in ref.options}
    try:
        function = _jitted(ref.function, {"error_model": "numpy", "nogil": True, **options}, {})
        with _joined_statements():
            entry = numba.cfunc(_ENTRY, error_model="numpy")(_entry(ref, function))
    except Exception as error:  # numba's own, and what it raises of wrong options
        raise BackendError(_told(ref, error)) from (None if isinstance(error, NumbaError) else error)
    library, symbol = entry._library, entry._wrapper_name
    _kept_libraries.append(entry)
    if folder is not None and not _has_addresses(library):
        _write(folder, key, symbol, library.serialize_using_object_code())
    return int(entry.address)


def _has_addresses(library: Any) -> bool:
    """Whether code has an address of this process in it, as numba keeps large and strided arrays."""
    return library.has_dynamic_globals or any(map(_has_addresses, library._linking_libraries))


def _jitted(function: Any, options: dict[str, Any], known: dict[Any, Any]) -> Any:
    """The function for numba, and with it the plain functions that it calls: see `_for_numba`."""
    if hasattr(function, "py_func"):  # its author has marked it
        return function
    if function not in known:
        own, closure = dict(function.__globals__), function.__closure__ or ()
        cells = tuple(types.CellType() for _ in closure)
        copy = types.FunctionType(
            function.__code__, own, function.__name__, function.__defaults__, cells or None
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        known[function] = numba.njit(**options)(copy)
        attributes = frozenset(name for code in codes_of(function.__code__) for name in code.co_names)
        for name in filter(own.__contains__, global_names(function)):
            own[name] = _for_numba(own[name], attributes, options, known)
        for cell, outer in zip(cells, closure, strict=True):
            with contextlib.suppress(ValueError):  # nothing in it yet
                cell.cell_contents = _for_numba(outer.cell_contents, attributes, options, known)
    return known[function]


def _for_numba(value: Any, attributes: frozenset[str], options: dict[str, Any], known: dict[Any, Any]) -> Any:
    """What a global name or a closure holds: functions compiled too, those of a module in a copy of it."""
    is_module = isinstance(value, types.ModuleType)
    if not is_module and not isinstance(value, types.FunctionType):
        return value
    if is_library(value.__name__ if is_module else value.__module__):
        return value
    if not is_module:
        return _jitted(value, options, known)
    key = value, attributes
    if key not in known:
        known[key] = copy = types.ModuleType(value.__name__)
        vars(copy).update(vars(value))
        for name in attributes & vars(value).keys():
            vars(copy)[name] = _for_numba(vars(value)[name], attributes, options, known)
    return known[key]


@contextlib.contextmanager
def _joined_statements() -> Iterator[None]:
    """LLVM joins like statements to vectors, as an unrolled loop leaves them; numba has this off."""
    before, numba.config.SLP_VECTORIZE = numba.config.SLP_VECTORIZE, 1
    try:
        yield
    finally:
        numba.config.SLP_VECTORIZE = before


def _entry(ref: ArrayKernelRef, function: Any) -> Callable[[int, int, int], None]:
    """The function that a tape calls, of the parameter block's address and this thread's number."""
    places = {name: i for i, (name, _) in enumerate(ref.slots)}

    def number(name: str) -> str:
        return f"carray(pointer(slots[{places[name]}]), 1, int64)[0]"

    lines = [f"slots = carray(pointer(block), {len(places)}, int64)", f"rows = {number(ROWS)}"]
    lines += ["begin, end = rows * ith // nth, rows * (ith + 1) // nth", "if begin >= end:", "    return"]
    for i, array in enumerate(ref.arrays):
        at = number(array.name) if array.moves else f"slots[{places[array.name]}]"
        sizes = ", ".join(number(dim_slot(array.name, j)) for j in range(array.n_dims))
        lines.append(f"array_{i} = carray(pointer({at}), ({sizes},), {array.dtype})")
    for i, name in enumerate(ref.numbers):
        lines.append(f"number_{i} = carray(pointer(block + {8 * places[name]}), 1, float32)[0]")
    arguments = [f"array_{i}" for i in range(len(ref.arrays))] + ["begin", "end"]
    values = {name: f"number_{i}" for i, name in enumerate(ref.numbers)}
    values |= {name: repr(value) for name, value in ref.constants}
    # In their order: by name, in a `try`, numba takes one for another.
    names_in_order = list(inspect.signature(getattr(ref.function, "py_func", ref.function)).parameters)
    for i, name in enumerate(names_in_order[len(arguments) :], len(arguments)):
        if name in values:
            arguments.append(values[name] if i == len(arguments) else f"{name}={values[name]}")
    lines += ["try:", f"    function({', '.join(arguments)})"]
    lines += ["except Exception:", f"    carray(pointer(slots[{places[RAISED]}]), 1, int64)[0] = block"]
    names: dict[str, Any] = {"carray": carray, "pointer": _pointer, "function": function, "int64": np.int64}
    names |= {"float32": np.float32, "inf": np.inf, "nan": np.nan}
    names |= {array.dtype: np.dtype(array.dtype).type for array in ref.arrays}
    body = "".join(f"    {line}\n" for line in lines)
    exec(compile(f"def entry(block, ith, nth):\n{body}", f"<entry of {ref.name}>", "exec"), names)
    entry: Callable[[int, int, int], None] = names["entry"]
    return entry


_PLACE = re.compile(r'File "([^"<]+)", line (\d+)')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # which numba writes where colorama is imported


def _told(ref: ArrayKernelRef, error: Exception) -> str:
    """What numba says, with the author's line: the last one in its text is the innermost."""
    text = str(error) if isinstance(error, NumbaError) else f"{type(error).__name__}: {error}"
    text = _COLOUR.sub("", text)
    places = _PLACE.findall(text)
    code = getattr(ref.function, "py_func", ref.function).__code__
    file, line = places[-1] if places else (code.co_filename, code.co_firstlineno)
    reasons = [reason.strip() for reason in text.splitlines() if reason.strip()]
    kept = [
        reason
        for reason in reasons
        if not reason.startswith(("Failed in", "File ", "During:", "<source", "This error"))
    ]
    shown = "; ".join(dict.fromkeys(kept))[:600]
    source = _line_of(file, int(line))
    arrays = ", ".join(f"{slot.name}: {slot.dtype}, {slot.n_dims} dimensions" for slot in ref.arrays)
    return (
        f"kernel {ref.name} cannot be compiled: {file}:{line}: {f'`{source}`: ' if source else ''}{shown} "
        f"(its arrays: {arrays})"
    )


def _line_of(file: str, line: int) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError, IndexError):
        return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    return ""


# --- the cache


@functools.cache
def _folder_name() -> str:
    features = llvm.get_host_cpu_features().flatten()
    what = [_MAGIC, sys.version, numba.__version__, np.__version__, llvm.get_host_cpu_name(), features]
    what.append(hashlib.sha256(Path(__file__).read_bytes()).hexdigest())
    return hashlib.sha256(repr(what).encode()).hexdigest()[:24]


def _usable_folder() -> Path | None:
    where = settings.cache_folder() / "array_kernels" / _folder_name()
    return where if cache_access.is_private(where, "compiled kernels are not kept or loaded") else None


def _from_file(folder: Path | None, key: str) -> int | None:
    """The address of a kernel that a file has; None where there is none, or a damaged one."""
    if folder is None:
        return None
    try:
        content = cache_access.read_private(folder / f"{key}.kernel")
        line, data = content.split(b"\n", 1)
        header = json.loads(line)
        if header["key"] != key or header["sha256"] != hashlib.sha256(data).hexdigest():
            return None
        code, shared = data[: header["code"]], data[header["code"] :]
        state = header["library"], "object", (code, shared)
        library = codegen.JITCPUCodegen.unserialize_library(_codegen(), state)
        address = int(library.get_pointer_to_function(header["symbol"]))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    _kept_libraries.append(library)
    return address or None


def _codegen() -> Any:
    context = cpu_target.target_context
    context.refresh()
    return context.codegen()


def _write(folder: Path, key: str, symbol: str, state: Any) -> None:
    """Keep the kernel; a reader sees all of it or nothing. A folder that cannot be written is left alone."""
    library, _, (code, shared) = state
    data = bytes(code) + bytes(shared)
    header = {"key": key, "symbol": symbol, "library": library, "code": len(code)}
    header["sha256"] = hashlib.sha256(data).hexdigest()
    with contextlib.suppress(OSError):
        cache_access.make_private(folder)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n" + data)
            Path(temporary).replace(folder / f"{key}.kernel")
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        _prune(folder)


def _prune(folder: Path) -> None:
    """Keep the newest: whoever changes a kernel leaves one file each time."""
    files = sorted(folder.glob("*.kernel"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[KEPT_FILES:]:
        path.unlink(missing_ok=True)
