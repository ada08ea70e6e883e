"""Files of log-probabilities of a text under a base model, as llama-perplexity writes and reads them.

"_logits_"; int32 n_ctx, n_vocab and n_chunk; the ids, int32 [n_chunk, n_ctx]; then for each scored position a
row of uint16: two float32 in the place of the first four, scale and least, and for each word q, where
ln p = scale q + least; an odd vocabulary has one more, which is 0. Logits more than 16 below the greatest
count as 16 below. Knows rows of logits; nothing of models or statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing

MAGIC = b"_logits_"
DEPTH = 16
"""Natural logarithms below the greatest logit at which all others end."""
LEVELS = 65535
_HEAD = struct.Struct("<8s3i")
_SCALES = 4  # uint16 of a row before its words


def row_size(n_vocab: int) -> int:
    """How many uint16 a row has."""
    return n_vocab + n_vocab % 2 + _SCALES


def n_scored(n_ctx: int) -> int:
    """Scored positions of a chunk: those of the second half that have a next token in it."""
    return n_ctx - 1 - n_ctx // 2


def packed(logits: Floats) -> NDArray[np.uint16]:
    """Rows of logits [n, vocabulary] -> rows of the file."""
    greatest = logits.max(axis=1, keepdims=True)
    least = np.maximum(logits.min(axis=1, keepdims=True), greatest - np.float32(DEPTH))
    sums = np.exp(logits - greatest).sum(axis=1, dtype=np.float64, keepdims=True)
    log_sums = np.log(sums).astype(np.float32)
    scale = (greatest - least) / np.float32(LEVELS)
    steps = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rows = np.zeros((len(logits), row_size(logits.shape[1])), np.uint16)
    rows[:, :_SCALES] = np.concatenate([scale, least - greatest - log_sums], axis=1).view(np.uint16)
    words = rows[:, _SCALES : _SCALES + logits.shape[1]]
    words[...] = np.rint((np.maximum(logits, least) - least) * steps).clip(0, LEVELS)
    return rows


@dataclass(frozen=True)
class BaseLogits:
    """An open file. ids: int32 [n_chunk, n_ctx]; the rows stay in the file."""

    path: Path
    n_vocab: int
    ids: NDArray[np.int32]
    _rows: NDArray[np.uint16] = field(repr=False)

    @property
    def n_ctx(self) -> int:
        """Tokens of a chunk."""
        return int(self.ids.shape[1])

    def log_probs(self, chunk: int, begin: int, end: int) -> Floats:
        """ln p of all words at scored positions begin to end of a chunk, float32 [n, vocabulary]."""
        rows = np.asarray(self._rows[chunk, begin:end])
        scales = np.ascontiguousarray(rows[:, :_SCALES]).view(np.float32)
        words = rows[:, _SCALES : _SCALES + self.n_vocab].astype(np.float32)
        return words * scales[:, :1] + scales[:, 1:]


def open_base(path: Path) -> BaseLogits:
    """The file at `path`; a UsageError that says what is no such file in it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
        size = path.stat().st_size
    except OSError as error:
        raise UsageError(f"{path}: wanted log-probabilities of a base model; {reason(error)}") from None
    if len(head) < _HEAD.size or head[: len(MAGIC)] != MAGIC:
        raise UsageError(
            f"{path}: wanted log-probabilities of a base model, which begin with {MAGIC.decode()}; "
            f"got {head[: len(MAGIC)]!r}"
        )
    _, n_ctx, n_vocab, n_chunk = _HEAD.unpack(head)
    if n_ctx < 4 or n_vocab < 1 or n_chunk < 1:
        raise UsageError(
            f"{path}: wanted counts above 0; got n_ctx {n_ctx}, n_vocab {n_vocab}, n_chunk {n_chunk}"
        )
    ids_end = _HEAD.size + 4 * n_ctx * n_chunk
    wanted = ids_end + 2 * n_chunk * n_scored(n_ctx) * row_size(n_vocab)
    if size != wanted:
        raise UsageError(
            f"{path}: {n_chunk} chunks of {n_ctx} tokens and {n_vocab} words take {wanted:,} bytes; got "
            f"{size:,}. "
            "It was cut short, or is still being written"
        )
    ids = np.fromfile(path, "<i4", n_ctx * n_chunk, offset=_HEAD.size).reshape(n_chunk, n_ctx)
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise UsageError(f"{path}: wanted ids below {n_vocab}; got {ids.min()} to {ids.max()}")
    shape = (n_chunk, n_scored(n_ctx), row_size(n_vocab))
    return BaseLogits(path, n_vocab, ids, np.memmap(path, "<u2", "r", ids_end, shape))


@contextmanager
def writing_base(path: Path, ids: NDArray[np.int32], n_vocab: int) -> Iterator[BaseWriter]:
    """Within, add the rows of `ids` [n_chunk, n_ctx]; after it the file is there, whole, or as it was."""
    n_chunk, n_ctx = ids.shape
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            file.write(_HEAD.pack(MAGIC, n_ctx, n_vocab, n_chunk))
            file.write(ids.astype("<i4").tobytes())
            yield BaseWriter(file)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {reason(error)}") from None


class BaseWriter:
    """Takes the rows of logits in their order."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, logits: Floats) -> None:
        """Rows [n, vocabulary] of the next scored positions."""
        self._file.write(packed(logits).astype("<u2", copy=False).tobytes())
