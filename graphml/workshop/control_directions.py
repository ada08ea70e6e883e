"""Control vectors of pairs of texts: the direction in which what a layer gives differs within the pairs.

As llama.cpp's `cvector-generator` makes them: both texts of a pair are evaluated, the shorter one filled with
spaces; of each token the values of each layer but the last are subtracted, rows without a difference are left
out, and the direction of a layer is the mean of the others, or their first principal component (not centred),
of length 1. Knows graphs, sessions and arrays; nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from graphml.api.capture import Probe
from graphml.api.model import Model
from graphml.backend import Progress, no_progress
from graphml.errors import TokenizerError, UsageError, WeightsError
from graphml.ir.op import Array
from graphml.passes.control_vectors import layer_result

Method = Literal["pca", "mean"]
SMALLEST = 1e-6
"""A row counts where one of its differences is above this, as in llama.cpp."""
TOLERANCE = 1e-7  # distance between two steps of the iteration, behind which it ends
PIECE_BYTES = 256 << 20
"""Captured values of one evaluation that may be in memory at once."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPED = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
Numbers = NDArray[np.float64]
Ids = list[int]


@dataclass
class Differences:
    """Rows of a layer: their sum, and for components all of them, or their products by column."""

    keeps_rows: bool
    total: Numbers
    n_rows: int = 0
    rows: list[Array] = field(default_factory=list)
    products: Numbers | None = None
    """Of rows that have been added to it: transposed times themselves."""

    def add(self, rows: Array) -> None:
        """More rows; those without a difference are left out."""
        rows = rows[(rows > SMALLEST).any(1)]
        self.total += rows.sum(0, dtype=np.float64)
        self.n_rows += len(rows)
        if self.keeps_rows:
            self.rows.append(rows)
            if sum(map(len, self.rows)) > len(self.total):  # their products are smaller
                self._fold()

    def _fold(self) -> None:
        rows = np.concatenate(self.rows).astype(np.float64)
        self.products = rows.T @ rows + (0.0 if self.products is None else self.products)
        self.rows = [self.rows[0][:0]]

    def mean(self) -> Numbers:
        """The mean of the rows, of length 1; of zeros where they cancel out."""
        length = float(np.linalg.norm(self.total))
        return self.total / length if length else self.total

    def component(self, iterations: int) -> Numbers:
        """The first principal component, by at most so many steps of power iteration.

        Its sign is that of the mean: from the negative texts to the positive ones.
        """
        products, rows = self.products, np.concatenate(self.rows).astype(np.float64)
        vector = np.random.default_rng(0).uniform(0.0, 1.0, len(self.total))
        vector /= np.linalg.norm(vector)
        for _ in range(iterations):
            after = rows.T @ (rows @ vector)
            after += 0.0 if products is None else products @ vector
            after /= np.linalg.norm(after)
            distance = np.linalg.norm(after - vector)
            vector = after
            if distance < TOLERANCE:
                break
        return -vector if vector @ self.total < 0 else vector


def control_directions(
    model: Model,
    pairs: Sequence[tuple[str, str]],
    method: Method = "pca",
    iterations: int = 1000,
    progress: Progress = no_progress,
) -> dict[int, NDArray[np.float32]]:
    """The directions by layer.

    pairs: a positive and a negative text each. The number N of a direction is that of llama.cpp: it is made
    of what layer N - 1 gives, and added to what layer N gives. iterations: of the method `pca`. UsageError
    for pairs that do not differ, are longer than the context, or are fewer than the method needs.
    """
    if not pairs or (method == "pca" and len(pairs) < 2):
        raise UsageError(
            f"cvector: {method}: wanted at least {'2 pairs' if method == 'pca' else '1 pair'}; "
            f"got {len(pairs)}{': the mean is of one, too' if pairs else ''}"
        )
    names = _results(model)
    texts = [_filled(model, number, *pair) for number, pair in enumerate(pairs, 1)]
    n_ctx = max(len(positive) for positive, _ in texts)
    seen: list[Differences] = []
    with model.session(n_ctx, capture=names) as first, model.session(n_ctx, capture=names) as second:
        row_bytes = sum(Probe(model.executor, names).row_bytes.values()) + 4 * model.executor.n_vocab
        rows = max(16, PIECE_BYTES // row_bytes)
        for number, (positive, negative) in enumerate(texts, 1):
            first.rewind(0)
            second.rewind(0)
            n_before = [each.n_rows for each in seen]
            for begin in range(0, len(positive), rows):
                first.eval(positive[begin : begin + rows], all_logits=True)
                second.eval(negative[begin : begin + rows], all_logits=True)
                differences = [first.captured[name] - second.captured[name] for name in names]
                seen = seen or [
                    Differences(method == "pca", np.zeros(each.shape[-1])) for each in differences
                ]
                for name, rows_of_layer, layer in zip(names, differences, seen, strict=True):
                    if not np.isfinite(rows_of_layer).all():
                        raise WeightsError(f"cvector: {name}: its numbers are not finite")
                    layer.add(rows_of_layer)
            for name, each, before in zip(names, seen, n_before or [0] * len(seen), strict=True):
                if each.n_rows == before:
                    raise UsageError(f"cvector: pair {number}: {name} is the same for both texts")
            progress("cvector", number, len(pairs))
    vectors = [each.component(iterations) if method == "pca" else each.mean() for each in seen]
    for name, vector in zip(names, vectors, strict=True):
        if not vector.any():
            raise UsageError(f"cvector: {name}: the differences cancel out: it has no mean direction")
    return {layer: vector.astype(np.float32) for layer, vector in enumerate(vectors, 1)}


def lines_of(text: str, source: str) -> list[str]:
    r"""The texts of a file, a line each, in which \n stands for a line end; UsageError for an empty line.

    Empty lines at the end are none. source: for errors.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError(f"{source}: wanted a text a line; the file is empty")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UsageError(f"{source}: line {number}: wanted a text; it is empty")
    return [_unescaped(line, f"{source}: line {number}") for number, line in enumerate(lines, 1)]


def _unescaped(line: str, source: str) -> str:
    r"""With the characters that \n, \r, \t, \', \", \\ and \x41 stand for; others stay as they are."""

    def meant(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[1].decode()) if match[1] else _ESCAPES[match[2].decode()].encode()

    try:
        return _ESCAPED.sub(meant, line.encode()).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{source}: wanted UTF-8 where \\x states bytes") from None


def _results(model: Model) -> list[str]:
    """The names of what each layer gives to the next."""
    executor = model.executor
    if not executor.generates or executor.encodes or executor.denoises:
        raise UsageError(f"{model.path}: cvector: wanted a model that predicts the next token of a text")
    metadata = model.metadata
    n_layer, n_embd = (
        metadata.integer(f"{metadata.text('general.architecture')}.{key}")
        for key in ("block_count", "embedding_length")
    )
    if n_layer < 2:
        raise UsageError(f"{model.path}: cvector: wanted at least 2 layers; got {n_layer}")
    users = executor.build(2, 2).users()
    return [layer_result(users, layer, n_embd, "cvector").name for layer in range(n_layer - 1)]


def _filled(model: Model, number: int, positive: str, negative: str) -> tuple[Ids, Ids]:
    """The ids of a pair, the shorter one filled with the last token of a space."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise TokenizerError(f"{model.path}: wanted a model with a vocabulary, to encode the texts")
    begins = tokenizer.bos is not None and model.encode("a")[:1] == [tokenizer.bos]
    space = model.encode(" ", add_special=False)
    ids = [model.encode(text, add_special=begins, parse_special=True) for text in (positive, negative)]
    longest = max(map(len, ids))
    if ids[0] == ids[1]:
        raise UsageError(f"cvector: pair {number}: both texts are the same")
    if longest > model.n_ctx:
        raise UsageError(
            f"cvector: pair {number}: wanted at most {model.n_ctx} tokens, the context; got {longest}"
        )
    if len({len(each) for each in ids}) > 1 and not space:
        raise TokenizerError(
            f"{model.path}: cvector: the vocabulary has no token of a space, to fill texts with"
        )
    filled = [each + space[-1:] * (longest - len(each)) for each in ids]
    if filled[0] == filled[1]:
        raise UsageError(f"cvector: pair {number}: the texts differ in spaces at their ends alone")
    return filled[0], filled[1]
