"""Multi-token prediction: drafts by a layer of the model's own file, which predicts one token further.

The layer reads the hidden row of a token and the id of the next one (DeepSeek-V3, 2024, arXiv:2412.19437). It
runs as a small model of its own, with cells of its own for each sequence, on the device of the model. Drafts
are guesses: what it has not seen of a text makes them worse, and changes no token.

Knows executors, hidden rows and ids; nothing of who tries the drafts, or of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.options import CompileOptions
from graphml.errors import BackendError, UsageError
from graphml.ir.cache_types import cache_types
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Floats
from graphml.loading.architecture import EMBEDDING, Architecture, Tensors
from graphml.runtime.blocks.drafting import Drafter, Proposal, greedy_draft
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import state_bytes
from graphml.runtime.programs.model_graphs import HIDDEN, head_prefix
from graphml.runtime.sessions.pinned import Pinned, Room
from graphml.runtime.sessions.sequence_arrays import copy_sequence
from graphml.weights import ModelFile

MOST_ROWS = 2048
"""Hidden rows that wait to be read; of a longer prompt the head reads the latest."""
HEAD_CELLS = 5
"""Cells of a sequence for each four tokens of it: they are made again and copied as it grows."""
_COMPARED = 16  # ids that tell whether a sequence still is what was read of it


def has_head(executor: Executor) -> bool:
    """Whether the file has a layer that predicts further tokens, and its architecture reads it."""
    if executor.architecture.ahead is None or executor.graphs.hidden_layers:
        return False  # its configuration may count no layers, or its hidden rows are a drafter's
    return f"{head_prefix(executor.config)}nextn.eh_proj.weight" in executor.file.tensors


def check_head(executor: Executor) -> None:
    """UsageError where no layer can draft, nor a file of its own."""
    if executor.head is not None and executor.head.spec_type == "mtp":
        return
    if executor.graphs.hidden_layers:
        raise UsageError(
            f"spec_type: mtp wants a model without a draft model that reads its hidden rows; "
            f"{executor.file.path} was opened with one"
        )
    if has_head(executor):
        if isinstance(executor.device, PartsDevice):
            raise UsageError("spec_type: mtp wants a model on one backend; it is on several")
        return
    why = "a file with a layer for multi-token prediction (nextn tensors) behind the others"
    if executor.architecture.ahead is None:
        why = (
            "a model of an architecture with a layer for multi-token prediction that graphml reads, which "
            f"{executor.architecture.name} is not"
        )
    elif executor.file.path.is_dir():
        why = "a GGUF file with such a layer: of a folder of transformers it is left out"
    raise UsageError(f"spec_type: mtp wants {why}; got {executor.file.path}")


def prediction_head(executor: Executor) -> PredictionHead:
    """The head of an open model, made when first asked for. UsageError as of `check_head`."""
    check_head(executor)
    head: PredictionHead | None = executor.head
    if head is None:
        with executor.lock:
            layer = alone(executor.architecture, executor.file.tensors[EMBEDDING].shape[-1])
            head = executor.head = executor.head or PredictionHead(executor, executor.file, layer)
    return head


def head_cell_bytes(executor: Executor) -> int:
    """Bytes of keys and values of the layer for one token; 0 where no layer can draft.

    A sequence has cells for at most `cells_for` as many tokens as it holds.
    """
    if executor.head is None and (not has_head(executor) or isinstance(executor.device, PartsDevice)):
        return 0
    head: PredictionHead = executor.head or prediction_head(executor)
    return head.cell_bytes()


def cells_for(n_tokens: int) -> int:
    """Cells that are made for so many tokens of a sequence: some more, in whole blocks."""
    return -(-n_tokens * HEAD_CELLS // (4 * BLOCK_SIZE)) * BLOCK_SIZE


class PredictionHead:
    """The programs of the layer. They take turns with the model's own, whose device and weights they use.

    file, architecture: of the layer alone; config: its own, None: the model's. spec_type: that which a file
    of its own has; "": it is in the model's. n_batch: rows of its longest step; None: as the model's.
    """

    spec_type = ""

    def __init__(
        self, executor: Executor, file: ModelFile, architecture: Architecture, config: Any = None,
        n_batch: int | None = None,
    ) -> None:  # fmt: skip
        options = executor.options
        self.executor = own = Executor(
            file, architecture, config or executor.config, executor.backend, executor.device,
            n_batch or executor.n_batch, str(cache_types(executor.cache_dtype).most),
            options=CompileOptions(options.fuse, strict=options.strict), swa_full=executor.graphs.swa_full,
            open_lock=executor.open_lock,
        )  # fmt: skip
        own.graphs.is_head = True
        self._owner, self._ready = executor, False

    def prepare(self) -> None:
        """Have its programs; from any thread. The first call alone waits for a step."""
        if not self._ready:
            for count in (1, self.executor.n_batch):
                self.executor.programs.compiled_for(count, 1)
            self._ready = True

    def drafter(self, n_ctx: int, n_vocab: int) -> Drafter:
        """One for a new sequence of at most `n_ctx` tokens."""
        return HeadDrafter(self, n_ctx, n_vocab)

    def cell_bytes(self) -> int:
        """Bytes that it keeps of one token."""
        own = self.executor
        empty = {"S": 1, "C": 0, **{group.symbol: 0 for group in own.cell_groups}}
        one_cell = empty | {"C": 1, **{group.symbol: 1 for group in own.cell_groups}}
        return state_bytes(own, one_cell) - state_bytes(own, empty)

    def of_model(self, rows: Floats) -> Floats:
        """What the layer reads of the model's hidden rows."""
        return rows

    def of_own(self, rows: Floats) -> Floats:
        """What it reads of its own."""
        return rows

    def close(self) -> None:
        """No program can run any more; who drafts with it may live longer. A file of its own is closed."""
        self.executor.programs.clear()
        if self.spec_type:
            self.executor.file.close()

    def step(self, sequence: Pinned, ids: Sequence[int], hidden: Floats) -> tuple[Floats, Floats]:
        """Append ids behind the tokens of these hidden rows: the last one's logits and its own hidden row."""
        copies: list[Floats] = []

        def take(outputs: Mapping[str, Array], end: int) -> None:
            copies.extend(outputs[name][0].copy() for name in ("logits", HIDDEN))

        with self.executor.lock:
            self._owner.n_steps += 1
            rows = sequence.rows(np.array(ids, np.int32), 1)
            sequence.room.run({sequence: (rows, take)}, inputs={HIDDEN: hidden})
        logits, row = copies
        return logits, row


def alone(architecture: Architecture, width: int) -> Architecture:
    """The architecture whose whole model is the layer. width: of the hidden rows that it reads."""
    ahead = architecture.ahead
    assert ahead is not None

    def build(g: Builder, config: object, weights: Tensors) -> Node:
        return ahead(g, config, weights, g.input(HIDDEN, F32, (g.n_tokens, width)))

    return replace(architecture, build=build, ahead=None)


class HeadDrafter:
    """Drafts of one sequence; `saw` gets the hidden rows of every step that computes it.

    A pair is a token's hidden row and the next id; pairs of neighbouring tokens, from any one on, are held in
    cells. n_vocab: larger ids are no tokens.
    """

    costs_time = True

    def __init__(self, head: PredictionHead, n_ctx: int, n_vocab: int) -> None:
        self._head, self._n_ctx, self._n_vocab = head, n_ctx, n_vocab
        self._cells: Pinned | None = None
        self._held: list[int] = []  # the ids of the pairs in cells
        self._next = 0  # the token whose pair is next
        self._rows: list[Floats] = []  # from that token on

    def saw(self, start: int, rows: Floats) -> None:
        """The hidden rows of the sequence's tokens from `start` on, which are copied."""
        known = self._next + len(self._rows)
        if start > known:
            self._begin_at(start)
        del self._rows[max(start - self._next, 0) :]
        self._rows += list(rows[max(self._next - start, 0) :].copy())
        if len(self._rows) > MOST_ROWS:
            kept = self._rows[-MOST_ROWS:]
            self._begin_at(self._next + len(self._rows) - MOST_ROWS)
            self._rows = kept

    def propose(self, ids: Sequence[int], count: int) -> Proposal:
        """See `Drafter`; nothing where the hidden row before the last id is not known."""
        last = len(ids) - 1  # its own hidden row is not computed yet
        behind = self._held[-_COMPARED:]
        if self._next > last or list(ids[self._next + 1 - len(behind) : self._next + 1]) != behind:
            self._begin_at(max(last, 0))  # another text now, or other positions
        wanted = last - self._next
        count = min(count, self._n_ctx - len(self._held) - wanted)
        if count < 1:
            return Proposal([])
        rows, self._rows = self._rows[:wanted], []
        if len(rows) < wanted:
            self._begin_at(last)
        if not rows or len(rows) < wanted:
            return Proposal([])
        return Proposal(self._drafted(list(ids[self._next + 1 :]), np.stack(rows), count))

    def close(self) -> None:
        """See `Drafter`."""
        self._cells = None
        self._begin_at(0)

    def _cells_for(self, n_tokens: int) -> Pinned:
        """Cells of so many tokens, with what is held. Devices allocate all, so they grow with a text."""
        executor, cells = self._head.executor, self._cells
        if cells is not None and n_tokens <= cells.n_ctx:
            return cells
        size = max(n_tokens, min(cells_for(n_tokens), self._n_ctx))
        larger = Room(executor, executor.options, size).pinned(0)
        if cells is not None and cells.n_computed:
            copy_sequence(cells, larger)
        return larger

    def _begin_at(self, token: int) -> None:
        """Hold nothing; the next pair is that of this token."""
        if self._cells is not None:
            self._cells.rewind(0)
        self._held, self._next, self._rows = [], token, []

    def _drafted(self, ids: list[int], rows: Floats, count: int) -> list[int]:
        """Read the pairs of these ids, then go on from its own predictions, which are not kept."""
        try:
            cells = self._cells = self._cells_for(len(self._held) + len(ids) + count)
        except (BackendError, MemoryError):  # a guess is not worth an answer: it forgets the text
            self._begin_at(self._next + len(ids))
            return []
        head, size = self._head, self._head.executor.n_batch
        for first in range(0, len(ids), size):
            logits, row = head.step(
                cells, ids[first : first + size], head.of_model(rows[first : first + size])
            )
        self._held += ids
        self._next += len(ids)

        def step(token: int) -> Floats:
            nonlocal row
            logits, row = head.step(cells, [token], head.of_own(row[None]))
            return logits

        draft = greedy_draft(logits, count, step, self._n_vocab)
        self._without_draft(cells)
        return draft

    def _without_draft(self, cells: Pinned) -> None:
        cells.rewind(len(self._held))
        if cells.n_computed < len(self._held):
            self._begin_at(self._next)  # a window has forgotten what the draft was written over
