"""A prefix of an engine in a file: its ids, and the keys and values of its blocks.

Knows files and what decides about keys and values; the blocks are moved by `graphml.runtime.moved_prefix`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphml.api.engine_store import model_identity
from graphml.errors import BackendError, UsageError
from graphml.ir.op import Array
from graphml.runtime.block_content import CELLS as BLOCKS
from graphml.runtime.block_content import Prefix
from graphml.runtime.block_files import Row
from graphml.runtime.executor import Executor
from graphml.runtime.moved_prefix import MovedPrefix
from graphml.runtime.paged_cache import BLOCK_SIZE
from graphml.runtime.runner import Runner
from graphml.runtime.step_loop import StepLoop
from graphml.runtime.tensor_file import TensorFile, write_tensors

FORMAT, VERSION = "graphml-prefix", 1
TOKENS, CELLS = "tokens", "cells/"


class PrefixFiles:
    """Saves, restores and forgets prefixes of an engine. From any thread; steps go on.

    extra: what besides ids decides whether a prefix is found (adapters, salt), as of `Request.extra`.
    """

    def __init__(self, executor: Executor, loop: StepLoop, runner: Runner) -> None:
        rows = runner.parts.rows
        if set(rows) != {BLOCKS}:
            raise UsageError(
                f"prefixes: {executor.architecture.name} keeps other states besides keys and values of its "
                "tokens, which blocks do not hold"
            )
        self._rows: Mapping[str, Row] = rows[BLOCKS]
        self._model, self._moved = model_identity(executor), MovedPrefix(loop, runner.parts)

    def save(self, ids: list[int], extra: bytes, path: Path) -> tuple[int, int]:
        """Write the blocks of the first of `ids` that the engine still has: how many ids, and bytes.

        A file that was saved before is replaced; UsageError for any other one, or where writing fails.
        """
        if path.exists():
            with self._opened(path):
                pass
        found, count = self._moved.read(np.array(ids, np.int32), Prefix.empty(extra))
        tokens = np.array(ids[:count], np.int32)
        arrays = {TOKENS: tokens}
        for name, row in self._rows.items():
            parts = [one[name] for one in found] or [np.empty((0, *row.shape[1:]), row.dtype)]
            arrays[CELLS + name] = np.concatenate(parts)[:count]
        about = {"format": FORMAT, "version": VERSION, "model": self._model, "extra": _hashed(extra)}
        try:
            write_tensors(path, about, arrays)
        except OSError as error:
            raise UsageError(f"{path.name}: cannot be written: {error.strerror or error}") from None
        return len(tokens), path.stat().st_size

    def restore(self, path: Path, extra: bytes) -> tuple[list[int], int]:
        """Put the blocks of a file where prompts find them: the ids that are there now, and bytes read.

        UsageError for a file of another model, cache type, backend or `extra`, or one that cannot be read.
        """
        with self._opened(path) as file:
            if file.about.get("model") != self._model:
                raise UsageError(f"{path.name}: was saved with another model, cache type or version")
            if file.about.get("extra") != _hashed(extra):
                raise UsageError(f"{path.name}: was saved under another key, or with other adapters")
            ids: Array = file.array(TOKENS, (None,), "i4")
            cells = {
                name: file.array(CELLS + name, (len(ids), *row.shape[1:]), row.dtype)
                for name, row in self._rows.items()
            }
        firsts = range(0, len(ids), BLOCK_SIZE)
        rows = [{name: _whole(one[at : at + BLOCK_SIZE]) for name, one in cells.items()} for at in firsts]
        count = self._moved.write(ids, Prefix.empty(extra), rows)
        return ids[:count].tolist(), path.stat().st_size

    def forget(self, ids: list[int], extra: bytes) -> int:
        """Give up the blocks of the first of `ids`, but for those that run: how many ids."""
        return self._moved.forget(np.array(ids, np.int32), Prefix.empty(extra))

    def _opened(self, path: Path) -> TensorFile:
        try:
            file = TensorFile(path)
        except UsageError as error:
            raise UsageError(str(error).replace(str(path), path.name)) from None
        if (file.about.get("format"), file.about.get("version")) != (FORMAT, VERSION):
            raise UsageError(f"{path.name}: wanted a saved prefix; it is of something else")
        return file


def prefix_files(executor: Executor, loop: StepLoop, runner: Runner | None) -> PrefixFiles:
    """Those of an engine; BackendError where it was closed."""
    if runner is None:
        raise BackendError("engine: it was closed")
    return PrefixFiles(executor, loop, runner)


def _whole(rows: Array) -> Array:
    """The rows of a block, zeros behind those that are known."""
    behind = np.zeros((BLOCK_SIZE - len(rows), *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, behind]) if len(behind) else rows


def _hashed(extra: bytes) -> str:
    return hashlib.sha256(extra).hexdigest()
