"""A prefix of an engine in a file: its ids, the keys and values of its blocks, and recurrent states.

Knows files and what decides about keys and values; `runtime.store.moved_prefix` moves what is in them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphml.api.engine_store import engine_identity
from graphml.api.saved_file import array_name, named_arrays, open_saved, write_saved
from graphml.errors import BackendError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import CELLS
from graphml.runtime.blocks.source_blocks import SOURCE
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.plans.checkpoints import STATES
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.runner import Runner
from graphml.runtime.store.moved_prefix import MovedPrefix, Parts
from graphml.weights.tensor_file import TensorFile

WHAT, TOKENS = "prefix", "tokens"


class PrefixFiles:
    """Saves, restores and forgets prefixes of an engine. From any thread; steps go on.

    extra: what besides ids decides whether a prefix is found (adapters, salt), as of `Request.extra`.
    runner: None where the engine was closed.
    """

    def __init__(self, executor: Executor, loop: StepLoop, runner: Runner | None) -> None:
        if runner is None:
            raise BackendError("engine: it was closed")
        self._rows = runner.parts.rows
        if not self._rows or SOURCE in self._rows:
            raise UsageError(
                f"prefixes: {executor.architecture.name} reads a source text, or has windows beside "
                "recurrent states; of those an engine keeps no prefixes"
            )
        self._identity = engine_identity(executor)
        self._moved = MovedPrefix(loop, runner.parts)

    def save(self, ids: list[int], extra: bytes, path: Path) -> tuple[int, int]:
        """Write what the engine still has of the first of `ids`: how many ids, and bytes.

        A file that was saved before is replaced; UsageError for any other one, or where writing fails.
        """
        count, parts = self._moved.read(np.array(ids, np.int32), extra)
        arrays = {TOKENS: np.array(ids[:count], np.int32), **named_arrays(parts)}
        with _without_folder(path):
            write_saved(path, WHAT, self._about(extra), arrays)
        return count, path.stat().st_size

    def restore(self, path: Path, extra: bytes) -> tuple[list[int], int]:
        """Put what a file has where prompts find it: the ids that are there now, and bytes read.

        UsageError for a file of another model, cache type, backend or `extra`, or one that cannot be read.
        """
        with _without_folder(path), open_saved(path, WHAT, self._about(extra)) as file:
            ids: Array = file.array(TOKENS, (None,), "i4")
            parts = self._parts(file, len(ids))
        count = self._moved.write(ids, extra, parts)
        return ids[:count].tolist(), path.stat().st_size

    def forget(self, ids: list[int], extra: bytes) -> int:
        """Give up what there is of the first of `ids`, but for blocks that run: how many ids."""
        return self._moved.forget(np.array(ids, np.int32), extra)

    def _about(self, extra: bytes) -> dict[str, str]:
        return {**self._identity, "extra": hashlib.sha256(extra).hexdigest()}

    def _parts(self, file: TensorFile, count: int) -> Parts:
        """What a file has of so many ids."""
        if self._rows.keys() != {CELLS} and count % BLOCK_SIZE:
            raise UsageError(f"{file.path}: wanted whole blocks of {BLOCK_SIZE} ids; it has {count} ids")
        cells = {CELLS: count, **self._moved.window_cells(count)}
        return {
            kind: {
                name: file.array(
                    array_name(kind, name),
                    (cells[kind], *row.shape[1:]) if kind in cells else row.shape,
                    row.dtype,
                )
                for name, row in rows.items()
            }
            for kind, rows in self._rows.items()
            if kind != STATES or count
        }


@contextlib.contextmanager
def _without_folder(path: Path) -> Iterator[None]:
    """Errors within name the file alone: a client is told of no folder."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace(str(path), path.name)) from None
