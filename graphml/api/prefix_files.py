"""A prefix of an engine in a file: its ids, the keys and values of its blocks, and recurrent states.

Knows files and what decides about keys and values; `runtime.store.moved_prefix` moves what is in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphml.api.engine_store import model_identity
from graphml.errors import BackendError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import CELLS
from graphml.runtime.blocks.source_blocks import SOURCE
from graphml.runtime.blocks.state_rows import StateRow
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.plans.checkpoints import STATES
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.runner import Runner
from graphml.runtime.store.moved_prefix import MovedPrefix, PrefixParts, Rows
from graphml.weights.tensor_file import TensorFile, write_tensors

FORMAT, VERSION = "graphml-prefix", 1
TOKENS, CELLS_FOLDER = "tokens", "cells/"


class PrefixFiles:
    """Saves, restores and forgets prefixes of an engine. From any thread; steps go on.

    extra: what besides ids decides whether a prefix is found (adapters, salt), as of `Request.extra`.
    """

    def __init__(self, executor: Executor, loop: StepLoop, runner: Runner) -> None:
        self._rows: Mapping[str, Mapping[str, StateRow]] = runner.parts.rows
        if not self._rows or SOURCE in self._rows:
            raise UsageError(
                f"prefixes: {executor.architecture.name} reads a source text, or has windows beside "
                "recurrent states; of those an engine keeps no prefixes"
            )
        self._model = model_identity(executor)
        self._moved = MovedPrefix(loop, runner.parts, self._rows)

    def save(self, ids: list[int], extra: bytes, path: Path) -> tuple[int, int]:
        """Write what the engine still has of the first of `ids`: how many ids, and bytes.

        A file that was saved before is replaced; UsageError for any other one, or where writing fails.
        """
        if path.exists():
            with self._opened(path):
                pass
        parts = self._moved.read(np.array(ids, np.int32), extra)
        tokens = np.array(ids[: parts.n_ids], np.int32)
        arrays = {TOKENS: tokens, **self._joined(CELLS, parts.cells)}
        arrays |= {name: rows[: len(tokens)] for name, rows in arrays.items() if name != TOKENS}
        for kind, blocks in parts.windows.items():
            arrays |= self._joined(kind, blocks)
        arrays |= {_name(STATES, name): rows for name, rows in (parts.states or {}).items()}
        about = {"format": FORMAT, "version": VERSION, "model": self._model, "extra": _hashed(extra)}
        try:
            write_tensors(path, about, arrays)
        except OSError as error:
            raise UsageError(f"{path.name}: cannot be written: {error.strerror or error}") from None
        return len(tokens), path.stat().st_size

    def restore(self, path: Path, extra: bytes) -> tuple[list[int], int]:
        """Put what a file has where prompts find it: the ids that are there now, and bytes read.

        UsageError for a file of another model, cache type, backend or `extra`, or one that cannot be read.
        """
        with self._opened(path) as file:
            if file.about.get("model") != self._model:
                raise UsageError(f"{path.name}: was saved with another model, cache type or version")
            if file.about.get("extra") != _hashed(extra):
                raise UsageError(f"{path.name}: was saved under another key, or with other adapters")
            ids: Array = file.array(TOKENS, (None,), "i4")
            parts = self._parts(file, len(ids))
        count = self._moved.write(ids, extra, parts)
        return ids[:count].tolist(), path.stat().st_size

    def forget(self, ids: list[int], extra: bytes) -> int:
        """Give up what there is of the first of `ids`, but for blocks that run: how many ids."""
        return self._moved.forget(np.array(ids, np.int32), extra)

    def _joined(self, kind: str, blocks: list[Rows]) -> dict[str, Array]:
        """The rows of blocks, one behind the other, by their name in a file."""
        arrays = {}
        for name, row in self._rows.get(kind, {}).items():
            every = [block[name] for block in blocks] or [np.empty((0, *row.shape[1:]), row.dtype)]
            arrays[_name(kind, name)] = np.concatenate(every)
        return arrays

    def _parts(self, file: TensorFile, count: int) -> PrefixParts:
        """What a file has of so many ids."""
        if self._rows.keys() != {CELLS} and count % BLOCK_SIZE:
            raise UsageError(f"{file.path.name}: wanted whole blocks of {BLOCK_SIZE} ids; it has {count} ids")
        sizes = {CELLS: count, **self._moved.window_cells(count)}
        every: dict[str, list[Rows]] = {}
        for kind, rows in self._rows.items():
            if kind != STATES:
                arrays = {
                    name: file.array(_name(kind, name), (sizes[kind], *row.shape[1:]), row.dtype)
                    for name, row in rows.items()
                }
                every[kind] = _blocks(arrays)
        states = {
            name: file.array(_name(STATES, name), row.shape, row.dtype)
            for name, row in (self._rows.get(STATES, {}) if count else {}).items()
        }
        return PrefixParts(count, every.pop(CELLS, []), every, states or None)

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


def _name(kind: str, name: str) -> str:
    """An array's name in a file."""
    return (CELLS_FOLDER if kind == CELLS else f"{kind}/") + name


def _blocks(arrays: Rows) -> list[Rows]:
    """The rows of each block, of the last with zeros behind those that are known."""
    count = max((len(rows) for rows in arrays.values()), default=0)
    firsts = range(0, count, BLOCK_SIZE)
    return [{name: _whole(rows[at : at + BLOCK_SIZE]) for name, rows in arrays.items()} for at in firsts]


def _whole(rows: Array) -> Array:
    """The rows of a block, zeros behind those that are known."""
    behind = np.zeros((BLOCK_SIZE - len(rows), *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, behind]) if len(behind) else rows


def _hashed(extra: bytes) -> str:
    return hashlib.sha256(extra).hexdigest()
