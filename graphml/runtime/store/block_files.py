"""The folder of a prefix store: a file for each part of a block, bounded in bytes, the oldest removed first.

FOLDER/graphml-store.json marks it as ours; FOLDER/MODEL/HASH.safetensors are the blocks of one model, cache
type, backend and version, HASH.KIND.safetensors what else belongs to the same tokens. A file's modification
time records when it was used last. Several processes may use one folder: what another has removed is not
found.

Knows files; nothing of queues, pools or states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import ContentPart
from graphml.runtime.blocks.state_rows import StateRow
from graphml.system.read_files import guarded, plain_json
from graphml.system.replaced_file import remove_stale, replacing
from graphml.weights.tensor_file import TensorFile, write_tensors

MARK, FORMAT, VERSION = "graphml-store.json", "graphml-store", 1
MOST_OF_MARK = 1000
SUFFIX = ".safetensors"
OWN_FOLDER, OWN_FILE = re.compile("[0-9a-f]{24}"), re.compile(r"[0-9a-f]*(\.[a-z0-9_]+)?\.safetensors")
TOKENS, CELLS = "tokens", "cells/"
KEEP = 0.9  # of the most bytes is left when files are removed


class BlockFiles:
    """The parts of one model in a folder, which is made if it is not there.

    model: what must be equal for blocks to be usable, by name. rows: kind of part -> name -> what its array
    is. max_bytes: of all files in the folder. UsageError for a folder that is no store, OSError where it
    cannot be made or read.
    """

    def __init__(
        self,
        folder: Path,
        model: Mapping[str, str],
        rows: Mapping[str, Mapping[str, StateRow]],
        max_bytes: int,
    ) -> None:
        self.folder, self._model, self._rows, self.max_bytes = folder, dict(model), dict(rows), max_bytes
        _open_store(folder)
        name = hashlib.sha256(json.dumps(sorted(self._model.items())).encode()).hexdigest()[:24]
        self._own = folder / name
        self._held = {path.stem for path, _, _ in _files(folder) if path.parent == self._own}
        self._n_bytes = sum(size for _, size, _ in _files(folder))
        remove_stale(path for path in folder.iterdir() if path.is_dir())

    def part_bytes(self, kind: str) -> int:
        """Of the arrays of a part; 0 for a kind that is not stored."""
        return sum(math.prod(row.shape) * row.dtype.itemsize for row in self._rows.get(kind, {}).values())

    @property
    def largest_bytes(self) -> int:
        """Of the arrays of the largest part."""
        return max(map(self.part_bytes, self._rows))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of parts that are stored."""
        return tuple(self._rows)

    def stores(self, kind: str) -> bool:
        """Whether parts of a kind are stored."""
        return kind in self._rows

    def has(self, part: ContentPart) -> bool:
        """Whether there is, or was when the folder was read last, such a part for tokens of that hash."""
        return _name(part) in self._held

    def read(self, part: ContentPart) -> dict[str, Array] | None:
        """The rows of a part of this content; None where there is none.

        UsageError for a damaged file, which is not found again.
        """
        path = self._path(part)
        try:
            with TensorFile(path) as file:
                if not self._is_of(file, part):
                    return None
                return {
                    name: file.array(CELLS + name, row.shape, row.dtype)
                    for name, row in self._rows[part.kind].items()
                }
        except UsageError:
            self._held.discard(path.stem)
            if path.exists():
                raise
            return None  # another process has removed it
        except OSError:
            return None

    def write(self, part: ContentPart, rows: Mapping[str, Array]) -> None:
        """Write a part, unless there is one for that hash; older ones are removed for it."""
        path = self._path(part)
        size = self.part_bytes(part.kind)
        if self.has(part):
            return
        if self._n_bytes + size > self.max_bytes:
            self._remove_oldest(size)
        self._own.mkdir(exist_ok=True)
        arrays = {CELLS + name: array for name, array in rows.items()}
        arrays[TOKENS] = np.frombuffer(part.content.tokens, np.int32)
        write_tensors(path, self._about(part), arrays, durable=False)
        self._held.add(path.stem)
        self._n_bytes += path.stat().st_size

    def used(self, part: ContentPart) -> None:
        """A part was used: it is removed later. Nothing, where the folder cannot be written."""
        with contextlib.suppress(OSError):
            os.utime(self._path(part))

    def remove(self, part: ContentPart) -> None:
        """Remove a part, if it is there. OSError where the folder cannot be written."""
        path = self._path(part)
        self._held.discard(path.stem)
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            path.unlink()
            self._n_bytes -= size

    def _about(self, part: ContentPart) -> dict[str, Any]:
        about = {"model": self._model, "parent": part.content.parent.lineage.hex()}
        return about | ({"kind": part.kind} if part.kind else {})

    def _is_of(self, file: TensorFile, part: ContentPart) -> bool:
        """Whether it holds these tokens behind the same others, of this model; a hash is not enough."""
        tokens = np.frombuffer(part.content.tokens, np.int32)
        same = file.about == self._about(part)
        return same and np.array_equal(file.array(TOKENS, tokens.shape, "i4"), tokens)

    def _path(self, part: ContentPart) -> Path:
        return self._own / (_name(part) + SUFFIX)

    def _remove_oldest(self, size: int) -> None:
        files = sorted(_files(self.folder), key=lambda entry: entry[2])
        self._n_bytes = sum(n_bytes for _, n_bytes, _ in files)
        for path, n_bytes, _ in files:
            if self._n_bytes + size <= KEEP * self.max_bytes:
                return
            try:
                path.unlink(missing_ok=True)
            except PermissionError:
                if sys.platform == "win32":  # it is being read, and stays
                    continue
                raise
            self._n_bytes -= n_bytes
            if path.parent == self._own:
                self._held.discard(path.stem)


def _name(part: ContentPart) -> str:
    """The name of a part's file, without its suffix."""
    return part.content.prefix.digest.hex() + (f".{part.kind}" if part.kind else "")


def _open_store(folder: Path) -> None:
    """Make a store of a folder that is empty or not there."""
    mark = folder / MARK
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"store: wanted a folder, got {folder}, which is something else")
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.exists():
        if any(folder.iterdir()):
            raise UsageError(f"store: {folder} holds other files, and no {MARK}; wanted a folder of its own")
        with replacing(mark) as partial:
            partial.write_text(json.dumps({"format": FORMAT, "version": VERSION}))
        return
    damaged = "is damaged; remove the folder, or give another one"
    said = plain_json(mark, UsageError, MOST_OF_MARK, damaged)
    with guarded(mark, UsageError, damaged):
        stated = said["format"], said["version"]
    if stated != (FORMAT, VERSION):
        raise UsageError(f"store: {mark}: wanted version {VERSION} of {FORMAT}, got {stated!r:.60}")


def _files(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """The blocks of all models: path, bytes, when it was used last."""
    for path in _entries(folder):
        for file in _entries(path) if OWN_FOLDER.fullmatch(path.name) else ():
            if OWN_FILE.fullmatch(file.name):
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat()
                    yield file, status.st_size, status.st_mtime


def _entries(folder: Path) -> Iterable[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.iterdir())
    return ()
