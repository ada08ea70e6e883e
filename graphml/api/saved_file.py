"""Files of what was computed for a sequence: of sessions, chats, and prefixes of an engine.

A safetensors file of rows of states by kind and name (`KIND/NAME`), ids and other arrays; its header says
what it is of, and what must be equal for its rows to be usable, and holds hashes of every array.

Knows files, models and options; nothing of sequences, blocks or when rows are read and written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.cache_types import cache_form
from graphml.ir.op import Array
from graphml.runtime.programs.executor import Executor
from graphml.runtime.store.model_code import own_code_of
from graphml.weights.tensor_file import TensorFile, write_tensors

VERSION = 2
DIFFERS = {
    "added": "model: its list of adapters and control vectors",
    "architecture": "model: its architecture",
    "backend": "backend: its name",
    "code": "definition of the architecture or of its ops",
    "extra": "key, or with other adapters",
    "graphml": "version of graphml: its number",
    "kv": "cache type (kv): its cache type (kv)",
    "model": "model: its fingerprint",
    "sums": "order of sums: its name",
    "windows": "swa_full: its list of windows",
}
"""What differs, and whose value an error shows; of hashes, which may be of secrets, none."""


def model_identity(executor: Executor, options: CompileOptions) -> dict[str, str]:
    """What must be equal for keys and values to be usable on any backend, by name."""
    return {
        "model": executor.file.fingerprint,
        "architecture": executor.architecture.name,
        "kv": cache_form(executor.cache_dtype),
        "windows": " ".join(group.name for group in executor.cell_groups),
        "code": own_code_of(executor),
        "added": "; ".join(options.added),
    }


def write_saved(path: Path, what: str, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a file of `what` (session, prefix) whole or not at all.

    about: by name, also what `open_saved` compares. UsageError where writing fails, and for a file that is
    there and is of something else; one of `what` is replaced.
    """
    try:
        if path.exists():
            _check_replaceable(path, what)
        write_tensors(path, {**about, "format": f"graphml-{what}", "version": VERSION}, arrays)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"{str(path)!r}: cannot be written: {error}") from None


@contextmanager
def open_saved(path: Path, what: str, identity: Mapping[str, str]) -> Iterator[TensorFile]:
    """A file of `what` of this identity, open within; UsageError with the reason for any other file."""
    with TensorFile(path) as file:
        about = file.about
        if about.get("format") != f"graphml-{what}":
            raise UsageError(f"{path}: wanted a saved {what}, got {about.get('format')!r:.40}")
        if about.get("version") != VERSION:
            raise UsageError(
                f"{path}: wanted version {VERSION} of a saved {what}, got {about.get('version')!r:.40}"
            )
        for key, own in sorted(identity.items()):
            if about.get(key) != own:
                values = f" is {about.get(key)!r:.80}, that of this model is {own!r:.80}"
                shown = values if ":" in DIFFERS[key] else ""
                raise UsageError(f"{path}: was saved with another {DIFFERS[key]}{shown}")
        yield file


def array_name(kind: str, name: str) -> str:
    """The name in a file of a state's rows."""
    return f"{kind or 'cells'}/{name}"


def named_arrays(parts: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """Rows by kind and name, by their names in a file."""
    return {array_name(kind, name): rows for kind, some in parts.items() for name, rows in some.items()}


def _check_replaceable(path: Path, what: str) -> None:
    try:
        with TensorFile(path) as file:
            known = file.about.get("format") == f"graphml-{what}"
    except UsageError:
        known = False
    if not known:
        raise UsageError(f"{path}: is there already and is no saved {what}; choose another name")
