"""The file of `graphml tune`, `tuning.json` in the cache folder: a list of entries that backends put there.

Knows no entry's meaning: a backend recognises its own, and checks what it uses.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from graphml import settings
from graphml.errors import BackendError
from graphml.system import cache_access
from graphml.system.read_files import guarded, plain_json
from graphml.system.replaced_file import replacing

_MOST_BYTES = 4 << 20
DAMAGED = "is no file of `graphml tune`; remove it"
Key = TypeVar("Key")


def path() -> Path:
    """Where it is."""
    return settings.cache_folder() / "tuning.json"


def read(file: Path) -> list[dict[str, Any]]:
    """All entries, of whatever backend and machine; none without a file. `BackendError` if it is another."""
    if not file.exists():
        return []
    content = plain_json(file, BackendError, _MOST_BYTES, DAMAGED)
    with guarded(file, BackendError, DAMAGED):
        entries: list[dict[str, Any]] = content["entries"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("entries are no list of objects")
        return entries


def parameters_of(
    wanted: Mapping[str, str], key_of: Callable[[Mapping[str, Any]], Key]
) -> dict[Key, dict[str, int]]:
    """The parameters of entries whose fields are as wanted, by their keys; none if there are none.

    Raises `BackendError` for a file that cannot be read. What the parameters say is not checked.
    """
    file, by_key = path(), dict[Key, dict[str, int]]()
    for entry in read(file):
        if any(entry.get(name) != value for name, value in wanted.items()):
            continue
        with guarded(file, BackendError, DAMAGED):
            by_key[key_of(entry)] = dict(entry["parameters"])
    return by_key


def put(
    device: Mapping[str, str], version: str, key_of: Callable[[Mapping[str, Any]], Key],
    results: Mapping[Key, Mapping[str, Any]],
) -> None:  # fmt: skip
    """Put entries into the file, in place of those of the same device with their keys or of another version.

    results: the fields of each entry beside the device's and `version`. A damaged file is replaced. Raises
    `BackendError` where the folder cannot be written.
    """
    file, kept = path(), list[dict[str, Any]]()
    with contextlib.suppress(BackendError):
        for entry in read(file):
            of_device = all(entry.get(name) == value for name, value in device.items())
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                if not of_device or (entry.get("version") == version and key_of(entry) not in results):
                    kept.append(entry)
    write(file, [*kept, *({**device, "version": version, **fields} for fields in results.values())])


def ready(file: Path) -> None:
    """`BackendError` where the folder cannot be written, which is better known before a search."""
    try:
        cache_access.make(file.parent)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise BackendError(f"{file}: cannot be written: {error.strerror or error}") from None


def write(file: Path, entries: Sequence[Any]) -> None:
    """Put entries in place of all there are. `BackendError` where the folder cannot be written."""
    try:
        cache_access.make(file.parent)
        with replacing(file, durable=False) as partial:
            partial.write_text(json.dumps({"entries": list(entries)}, indent=1), encoding="utf-8")
    except OSError as error:
        raise BackendError(f"{file}: {error}") from None
