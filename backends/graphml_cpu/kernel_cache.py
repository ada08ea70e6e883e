"""Compiled kernels on disk: where they are, what makes them stale, and reading and writing them safely.

A kernel is machine code that runs in this process. So it is only loaded from a folder that nobody else can
write, and from a file that names this very kernel, sources, versions and level in its header.

The folder's name covers the sources of this package's kernels. A kernel of another module is imported, and
its file's name covers all that its function calls and reads, by value, and the text of their files.

Knows files and hashes; knows neither LLVM nor the front end. Everything here may fail without harm: then
the caller compiles.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import json
import linecache
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import graphml_quant

import graphml
from graphml import settings
from graphml.errors import BackendError
from graphml.ir.function_hash import reached
from graphml.system import cache_access
from graphml_cpu import target

# What decides about the code of a kernel, and all that kernel modules may import from this package. A change
# in any of it, or in the formats of graphml_quant, makes the cache start anew; no other change does.
KERNEL_SOURCES = (
    "simd",
    "kernels",
    "compile_workers.py",
    "compiler.py",
    "frontend",
    "kernel_cache.py",
    "kernel_compilation.py",
    "layouts.py",
    "llvm_modules.py",
    "machine_code.py",
    "only_once.py",
    "packed.py",
    "product_costs.py",
    "runtime/__init__.py",
    "runtime/part_claims.py",
    "runtime/shares.py",
    "runtime/sync.py",
    "runtime/tape.py",
    "runtime/tape_walker.py",
    "target.py",
)
# The same of the framework: what kernels import from it, and from what that imports.
FRAMEWORK_SOURCES = ("ir/cache_types.py", "ir/dtype.py")
# Folders of a level that are left, the newest and those of earlier sources and versions.
KEPT_FOLDERS = 12
_MAGIC = "graphml-kernel-3"


@dataclass(frozen=True)
class KernelRef:
    """Which kernel: `module`.`factory`(*arguments) makes its function; `name` is what programs call it.

    Arguments are strings, numbers, booleans or None. They and the factory are the kernel's identity; its name
    is not, so it is kept once, and `calls` is not either: its `Code` parameters by name, each with the kernel
    that it calls there, or None where it will not.
    """

    name: str
    module: str
    factory: str
    arguments: tuple[str | int | float | bool | None, ...] = ()
    calls: tuple[tuple[str, KernelRef | None], ...] = ()


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel: its entry's symbol, (name, kind) per parameter, symbols needed, object code."""

    symbol: str
    parameters: tuple[tuple[str, str], ...]
    externals: tuple[str, ...]
    code: bytes


def _package_folder() -> Path:
    return Path(__file__).parent


def _covered_files() -> list[Path]:
    root = _package_folder()
    named = [path for name in KERNEL_SOURCES for path in (root / name, *(root / name).rglob("*.py"))]
    framework = [Path(graphml.__file__).parent / name for name in FRAMEWORK_SOURCES]
    formats = Path(graphml_quant.__file__).parent.rglob("*.py")
    return sorted(path for path in (*named, *framework, *formats) if path.is_file())


@functools.cache
def sources_hash() -> str:
    """Hash of the kernels' sources, the versions that make code, and the level: the name of the folder."""
    digest = hashlib.sha256()
    level = target.current()
    versions = [importlib.metadata.version("llvmlite")]
    digest.update(repr([_MAGIC, sys.version, versions, level]).encode())
    for path in _covered_files():
        digest.update(path.name.encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{level.name}-{digest.hexdigest()[:24]}"


@functools.cache
def is_covered(module: str) -> bool:
    """Whether `sources_hash` covers the file of a module."""
    package, _, rest = module.partition(".")
    if package == graphml_quant.__name__:
        return True
    if package == graphml.__name__:
        return f"{rest.replace('.', '/')}.py" in FRAMEWORK_SOURCES
    name = rest.replace(".", "/")
    covered = name.partition("/")[0], f"{name}.py", f"{name}/__init__.py"
    return package == __name__.partition(".")[0] and any(prefix in KERNEL_SOURCES for prefix in covered)


def function_of(ref: KernelRef) -> Callable[..., None]:
    """The function that the kernel's factory makes; `BackendError` where there is no such factory."""
    try:
        factory = getattr(importlib.import_module(ref.module), ref.factory)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"kernel {ref.name}: no {ref.factory} in {ref.module}: {error}") from error
    kernel: Callable[..., None] = factory(*ref.arguments)
    return kernel


def _foreign_hash(ref: KernelRef) -> str:
    """Of all that a kernel reaches outside the covered sources; empty for those of this package.

    Texts count as the front end reads them: a file that changed after its import is under no other's key.
    """
    if is_covered(ref.module):
        return ""
    dependencies = reached(function_of(ref), is_covered)
    digest = hashlib.sha256(dependencies.hash.encode())
    functions = (*dependencies.functions, *dependencies.methods)
    for file in dict.fromkeys(function.__code__.co_filename for function in functions):
        linecache.checkcache(file)
        digest.update(hashlib.sha256("".join(linecache.getlines(file)).encode()).digest())
    return digest.hexdigest()


def file_stem(ref: KernelRef) -> str:
    """A file name (without ending), unique to the function that `ref` names, whatever that is called."""
    return _stem(ref, _foreign_hash(ref))


@functools.cache
def _stem(ref: KernelRef, foreign: str) -> str:
    identity = repr((ref.module, ref.factory, ref.arguments, foreign)).encode()
    title = "_".join([ref.factory.removeprefix("make_"), *map(str, ref.arguments)])
    readable = re.sub(r"[^A-Za-z0-9]+", "_", title)[:60]
    return f"{readable}-{hashlib.sha256(identity).hexdigest()[:12]}"


def symbol_of(ref: KernelRef) -> str:
    """The name of the entry's symbol, as unique as the file's."""
    return f"graphml_{file_stem(ref)}".replace("-", "_")


def folder() -> Path:
    """The folder of the kernels of these sources and this level; it need not exist."""
    return settings.cache_folder() / "kernels" / sources_hash()


def usable_folder() -> Path | None:
    """The folder, or None after a warning where somebody else can write there."""
    where = folder()
    return where if cache_access.is_private(where, "compiled kernels are not kept or loaded") else None


def _identity(ref: KernelRef) -> dict[str, Any]:
    """What a file must have been made for to be this kernel's."""
    return {
        "magic": _MAGIC,
        "made_for": sources_hash(),
        "module": ref.module,
        "reached": _foreign_hash(ref),
        "factory": ref.factory,
        "arguments": repr(ref.arguments),  # tells 1 from True and 1.0
        "symbol": symbol_of(ref),
    }


def _checksum(header: Mapping[str, Any], code: bytes) -> str:
    """Of all that is in the file."""
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n" + code).hexdigest()


def read(where: Path, ref: KernelRef) -> Artifact | None:
    """The kernel from the folder, or None if it is not there, not whole, another one, or not of this user."""
    try:
        content = cache_access.read_private(where / f"{file_stem(ref)}.kernel")
        header_line, code = content.split(b"\n", 1)
        header = json.loads(header_line)
        if header.pop("sha256") != _checksum(header, code):
            return None
        if any(header[name] != value for name, value in _identity(ref).items()):
            return None
        return Artifact(
            symbol=symbol_of(ref),
            parameters=tuple((str(name), str(kind)) for name, kind in header["parameters"]),
            externals=tuple(str(symbol) for symbol in header["externals"]),
            code=code,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def write(where: Path, ref: KernelRef, artifact: Artifact) -> None:
    """Keep the kernel; a reader sees all of it or nothing. A folder that cannot be written is left alone.

    What was compiled of sources that have changed since is not kept.
    """
    if artifact.symbol != symbol_of(ref):
        return
    header = {**_identity(ref), "parameters": artifact.parameters, "externals": artifact.externals}
    header["sha256"] = _checksum(header, artifact.code)
    content = json.dumps(header).encode() + b"\n" + artifact.code
    temporary: str | None = None
    with contextlib.suppress(OSError):
        is_new = not where.exists()
        cache_access.make_private(where)
        if is_new:
            _prune(where)
        handle, temporary = tempfile.mkstemp(dir=where, prefix=".writing-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(where / f"{file_stem(ref)}.kernel")
        temporary = None
    if temporary is not None:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()


def _prune(newest: Path) -> None:
    """Remove a level's folders of earlier sources, but for the few newest: two checkouts may share a cache.

    Other levels' stay: who works at several has more of them than are left of one.
    """
    level, _, _ = newest.name.rpartition("-")
    alike = [path for path in newest.parent.iterdir() if path.name.rpartition("-")[0] == level]
    others = [path for path in alike if path.is_dir() and path != newest]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_FOLDERS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
