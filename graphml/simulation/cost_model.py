"""Seconds of an engine's step by its rows, output rows and cells: measured once, and kept in a file.

Knows numbers; nothing of how they are measured, or of what is simulated with them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE

FORMAT = "graphml cost model 1"


@dataclass(frozen=True)
class CostModel:
    """What a replica's steps cost, and how its engine is set up.

    rows_s: (rows, seconds) of steps without output rows and cells, between which seconds are interpolated.
    output_s: seconds more for each row that a token is sampled from; context_s, chunk_context_s: for each
    cell that a row attends to, alone or with others of its prompt. request_s: seconds before a request is at
    its replica, behind sockets, front and tokenizer; part_s: of a front for each token that it passes on.
    n_ctx, n_blocks, parallel, n_batch, max_chunk, target_s: as of `Model.engine`. name: of the model. error:
    the median of |measured / fitted - 1| over the steps it was fitted to.
    """

    rows_s: tuple[tuple[int, float], ...]
    output_s: float
    context_s: float
    chunk_context_s: float
    n_ctx: int
    n_blocks: int
    parallel: int
    n_batch: int = 512
    max_chunk: int | None = None
    target_s: float = 0.05
    request_s: float = 0.0
    part_s: float = 0.0
    name: str = ""
    error: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_s", _pairs(self.rows_s))
        for name in ("n_ctx", "n_blocks", "parallel", "n_batch"):
            _check(name, getattr(self, name), int, 1)
        for name in ("output_s", "context_s", "chunk_context_s", "request_s", "part_s", "error"):
            _check(name, getattr(self, name), float, 0)
        _check("target_s", self.target_s, float, 1e-6)
        if self.max_chunk is not None:
            _check("max_chunk", self.max_chunk, int, 1)
        if not isinstance(self.name, str):
            raise UsageError(f"cost model: name: wanted a text; got {self.name!r:.80}")
        if self.n_ctx > self.n_blocks * BLOCK_SIZE:
            raise UsageError(
                f"cost model: n_blocks: wanted blocks of {BLOCK_SIZE} for {self.n_ctx} tokens, as of n_ctx; "
                f"got {self.n_blocks}"
            )

    def step_s(self, n_rows: int, n_outputs: int, n_context: int, n_chunk_context: int = 0) -> float:
        """Seconds of a step. n_context, n_chunk_context: cells that its rows attend to; see `contexts`."""
        base = self._by_rows[n_rows] if n_rows < len(self._by_rows) else self._beyond(n_rows)
        return (
            base
            + self.output_s * n_outputs
            + self.context_s * n_context
            + self.chunk_context_s * n_chunk_context
        )

    @cached_property
    def _by_rows(self) -> list[float]:
        rows, seconds = zip(*self.rows_s, strict=True)
        return [float(value) for value in np.interp(np.arange(rows[-1] + 1), rows, seconds)]

    def _beyond(self, n_rows: int) -> float:
        """Of more rows than were measured: in proportion."""
        rows, seconds = self.rows_s[-1]
        return seconds * n_rows / rows

    def write(self, path: Path) -> None:
        """Keep it in a file of JSON; a UsageError where that cannot be written."""
        try:
            path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None

    @classmethod
    def read(cls, path: Path) -> CostModel:
        """The one that a file keeps; a UsageError that names the file and what is wrong in it."""
        try:
            values = json.loads(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: wanted a cost model; {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: wanted a cost model; no JSON: {error}") from None
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise UsageError(
                f"{path}: wanted {FORMAT!r} as its format: what graphml simulate MODEL --measure writes"
            )
        if unknown := sorted(values.keys() - {field.name for field in fields(cls)}):
            raise UsageError(f"{path}: cost model: {unknown[0]!r} is no part of one")
        try:
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"{path}: cost model: {str(error).partition(') ')[2] or error}") from None
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def contexts(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Cells that rows attend to: of spans of one row, and of longer ones. spans: (start, count)."""
    alone = chunks = 0
    for start, count in spans:
        if count == 1:
            alone += start + 1
        else:
            chunks += count * start + count * (count + 1) // 2
    return alone, chunks


def _check(name: str, value: Any, kind: type, least: float) -> None:
    kinds = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
        raise UsageError(f"cost model: {name}: wanted a number from {least:g} on; got {value!r:.80}")


def _pairs(values: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = tuple((rows, float(seconds)) for rows, seconds in values)
    except (TypeError, ValueError):
        raise UsageError(
            f"cost model: rows_s: wanted pairs of rows and seconds; got {values!r:.80}"
        ) from None
    for rows, seconds in pairs:
        _check("rows_s", rows, int, 1)
        _check("rows_s", seconds, float, 0)
    if pairs and not any(seconds for _, seconds in pairs):
        raise UsageError("cost model: rows_s: wanted seconds above 0 of some number of rows")
    if not pairs or any(first[0] >= second[0] for first, second in pairwise(pairs)):
        raise UsageError(f"cost model: rows_s: wanted pairs in the order of their rows; got {values!r:.80}")
    return pairs
