"""Pinned sequences: each has blocks of its own as long as it lives, so no other one can refuse it a token.

Its caller makes its steps, in plans that a `Runner` computes. How many tokens it holds is all that changes,
in one store: which cells hold them follows from it.

Knows numbers of tokens, blocks and copies of states; nothing of ids, logits or sampling.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from graphml.backend import RowCopies
from graphml.compiler.options import CompileOptions
from graphml.compiler.row_copies import row_copies
from graphml.errors import BackendError, ContextFullError, UsageError
from graphml.ir.cell_groups import CellGroup
from graphml.ir.cells import BLOCK_SIZE, cells_of
from graphml.ir.op import Array
from graphml.ir.shape import fixed
from graphml.runtime.blocks import sequence
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.window_ring import WindowRing
from graphml.runtime.plans.prompt_scores import n_scored
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import state_bytes
from graphml.runtime.sessions.kept_states import KeptStates
from graphml.runtime.steps.cell_mover import CellMove, move_cells
from graphml.runtime.steps.computed_plan import BegunPlan, Computed
from graphml.runtime.steps.runner import Runner
from graphml.sampling import PeekableRandom, SamplingParams
from graphml.sampling.candidates.moment import SamplerVocabulary
from graphml.system.pages import out_of_memory

MOST_COPIES = 4  # of the states of a recurrent sequence
COPIES_BYTES = 256 << 20  # of all sequences of a room
Part: TypeAlias = tuple[Rows, Callable[[Mapping[str, Array], int], None]]
"""Rows of a step, and what gets its outputs by name and the number of the output row behind their last."""
NO_IDS: Array = np.empty(0, np.int32)


class Pinned(sequence.Sequence):
    """Sequence number `slot` of some, each of at most `n_ctx` tokens; `n_computed` tokens are in its cells.

    rings: of layers that see a window and keep no more than it and the longest step. states: what its
    recurrent states have read, if it has any; they cannot be cut back. n_source: tokens of a source text that
    an encoder has read. room: where it is. shares: whether others may copy what it holds, and its steps take
    others along.
    """

    room: Room

    def __init__(
        self, slot: int, n_ctx: int, rings: Sequence[WindowRing] = (), recurrent: bool = False
    ) -> None:
        super().__init__(Request(NO_IDS), slot)
        self.slot, self.n_ctx, self.n_source = slot, n_ctx, 0
        self.shares = False
        self.n_prompt = 0  # tokens after the prompt that is evaluated
        self.states = KeptStates() if recurrent else None
        self._rings, self._ends = tuple(rings), [0] * len(rings)
        count = -(-n_ctx // BLOCK_SIZE)
        self._table: Array = np.arange(slot * count, (slot + 1) * count, dtype=np.int32)

    @property
    def n_text(self) -> int:
        """Tokens that it holds after the prompt that is evaluated; of later ones rows say where they are."""
        return self.n_prompt

    def table(self, n_tokens: int) -> Array:
        """The blocks of its first tokens, int32 [n]."""
        return self._table[: -(-n_tokens // BLOCK_SIZE)]

    def cells(self, first: int, count: int, group: CellGroup | None = None) -> Array:
        """The cells of `count` positions from `first` on, int32 [count], in a group of layers."""
        blocks = self._table
        for ring in self._rings:
            blocks = ring.of[self._table] if ring.group == group else blocks
        return cells_of(blocks, np.arange(first, first + count, dtype=np.int32))

    def seen_cells(self, group: CellGroup) -> Array:
        """The cells of the blocks that its next token sees in a group of layers, in order."""
        first = group.first_seen(self.n_computed) // BLOCK_SIZE * BLOCK_SIZE
        return self.cells(first, self.n_computed - first, group)

    def rows(self, ids: Array, n_outputs: int) -> Rows:
        """The rows of its next ids, of which the last `n_outputs` give logits."""
        return Rows(self, self.n_computed, len(ids), n_outputs, ids=ids)

    def scored_rows(self, ids: Array, is_last: bool) -> Rows:
        """The same of its prompt, with logits where `prompt_scores` want them, and behind the last id."""
        scored = n_scored(self, self.n_computed, len(ids))
        return replace(self.rows(ids, max(1, scored + is_last)), n_scored=scored)

    def score_prompt(
        self, ids: Array, params: SamplingParams, vocabulary: SamplerVocabulary | None, n_known: int
    ) -> None:
        """All these ids are its prompt, of which those from number `n_known` on are scored, but the first."""
        self.request = replace(self.request, ids=ids, params=params, vocabulary=vocabulary)
        self.prompt_scores = [None] * max(1, n_known)

    def append(self, count: int) -> bool:
        """`count` more tokens are about to be computed: they are held, and rewound where that fails.

        Whether recurrent states are those of the tokens before; see `KeptStates.begin`.
        """
        start, end = self.n_computed, self.n_computed + count
        if end > self.n_ctx:
            raise ContextFullError(
                f"the context holds {self.n_ctx} tokens and has {start}; got {count} more (see n_ctx, rewind)"
            )
        for i in range(len(self._ends)):
            self._ends[i] = end if not start else max(self._ends[i], end)
        self.n_computed = end
        return self.states is None or self.states.begin(start)

    def was_computed(self, are_right: bool) -> None:
        """The step is done; are_right: what `append` has returned."""
        if self.states is not None and are_right:
            self.states.read = self.n_computed

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on; a `UsageError` where there are not so many.

        A recurrent sequence then holds only those of which it has a copy of its states, unless it keeps them
        all: the others before `length` have to be evaluated again. Without one it holds none, since a
        recurrent state begins anew at position 0. So does one whose windows were written over; as many tokens
        as the longest step has can always be forgotten.
        """
        if not 0 <= length <= self.n_computed:
            raise UsageError(f"rewind: wanted 0 to {self.n_computed} tokens to keep; got {length}")
        if self.states is not None and length < self.n_computed:
            length = self.states.reach(length)
        if not all(ring.holds(end, length) for ring, end in zip(self._rings, self._ends, strict=True)):
            length = 0
            if self.states is not None:
                self.states.reach(0)  # copies of tokens that may become others
        self.n_computed = length

    @property
    def holds_all(self) -> bool:
        """Whether no window has been written over: each holds all tokens."""
        return all(ring.holds_all(end) for ring, end in zip(self._rings, self._ends, strict=True))

    def hold(self, length: int, source: Array) -> None:
        """Hold so many tokens, and a source text, whose rows its cells and states are given next.

        Of windows it has `seen_cells` alone: it cannot be cut back to where it saw more.
        """
        self.append(length)
        for i, ring in enumerate(self._rings):
            self._ends[i] = ring.end_without_past(length)
        self._show_source(source)
        self.n_source = len(source)

    def samples_by(self, params: SamplingParams, numbers: PeekableRandom) -> None:
        """How a device samples what follows its rows."""
        if self.request.params is not params:
            self.request = replace(self.request, params=params)
        self.numbers = numbers

    def restore_states(self) -> None:
        """Have the recurrent states be those of the tokens that it holds; before a step of it."""
        states, copies = self.states, self.room.copies
        if states is None or copies is None:
            return
        copy = states.to_restore(self.n_computed)
        if copy is not None:
            copies.restore(self.slot, copy.at)
            states.read = copy.n

    def keep_states(self) -> None:
        """Keep a copy of the recurrent states as they are, to which a later `rewind` can go back."""
        states, copies = self.states, self.room.copies
        if states is None or copies is None:
            return
        copy = states.to_keep(self.n_computed, copies.most)
        if copy is not None and copies.keep(self.slot, copy.at):
            states.kept(copy)

    def keep_before_draft(self) -> bool:
        """Keep a copy of the recurrent states, of which there is one, to go back to where a draft is wrong.

        Whether a draft can be taken back: there was memory, or there are no such states.
        """
        states, copies = self.states, self.room.copies
        if states is None or copies is None:
            return states is None
        self.restore_states()
        copy = states.to_keep_in(copies.most, self.n_computed)
        if copy is None:
            return True
        if not copies.keep(self.slot, copy.at):
            return False
        states.kept(copy)
        return True

    def share_nothing(self) -> None:
        """What it holds is computed otherwise from now on than what others hold."""
        if self.shares:
            self.room.tell(self.slot, lambda: None)
            self.shares = False

    def read_source(self, ids: Array) -> None:
        """Have the encoder read a source text in place of the one before; after an error there is none."""
        self.n_source = 0
        self._show_source(ids)
        self.room.runner.run(StepPlan((), sources=(self,)))
        self.n_source = len(ids)

    def _show_source(self, ids: Array) -> None:
        self.request = replace(self.request, source=ids)
        self.source_blocks = self.table(len(ids)).tolist()

    def move_down(self, first: int, count: int, by: int) -> None:
        """Move the cells of `count` positions from `first` on to positions that are `by` less."""
        runner = self.room.runner
        for group in (None, *(ring.group for ring in self._rings)):
            cells, symbol = ("cells", "C") if group is None else (group.input("cells"), group.symbol)
            sources, targets = self.cells(first, count, group), self.cells(first - by, count, group)
            move = CellMove(sources, targets, -by, runner.sizes[symbol], self.n_ctx, cells)
            move_cells(runner.executor, runner.state, move)


class StateCopies:
    """Copies of the recurrent states of a runner's sequences: `most` of each, made when the first is kept.

    And one behind those, of before the latest draft. Where there is no memory for them there are none.
    """

    def __init__(self, runner: Runner, n_sequences: int) -> None:
        nodes = [runner.leaves[name] for name in runner.names.sequences]
        of_a_sequence = sum(node.dtype.bytes_for(math.prod(map(fixed, node.shape[1:]))) for node in nodes)
        self.most = min(MOST_COPIES, COPIES_BYTES // max(of_a_sequence * n_sequences, 1)) if nodes else 0
        self._runner, self._n_sequences = runner, n_sequences
        self._copies: RowCopies | None = None
        self._none = not nodes

    def keep(self, slot: int, at: int) -> bool:
        """Copy the states of a sequence to its copy `at`; whether there is memory for it."""
        if self._none:
            return False
        if self._copies is None:
            runner, count = self._runner, (self.most + 1) * self._n_sequences
            try:
                self._copies = row_copies(runner.state, runner.names.sequences, count)
            except (MemoryError, BackendError):
                self.most, self._none = 0, True
                return False
        self._copies.keep(slot, slot * (self.most + 1) + at)
        return True

    def restore(self, slot: int, at: int) -> None:
        """Copy its copy `at` to the states of a sequence."""
        assert self._copies is not None
        self._copies.restore(slot * (self.most + 1) + at, slot)


class Room:
    """Blocks, states and copies of states for `n_sequences` pinned sequences of at most `n_ctx` tokens each.

    options: how programs are compiled where a step says nothing else. alone: see `Runner`. Sequences share
    nothing here, see `sessions.shared_room`. is_plain: tokens see none behind them and no source text.
    BackendError without the memory.
    """

    def __init__(
        self,
        executor: Executor,
        options: CompileOptions,
        n_ctx: int,
        n_sequences: int = 1,
        alone: bool = False,
    ) -> None:
        self.executor, self.n_ctx, self.n_sequences = executor, n_ctx, n_sequences
        self.open_lock = executor.open_lock
        n_batch = executor.n_batch
        self._rings = [WindowRing(group, n_ctx, n_sequences, n_batch) for group in executor.cell_groups]
        n_blocks = -(-n_ctx // BLOCK_SIZE) * n_sequences
        try:
            self.runner = Runner(
                executor,
                n_blocks,
                n_sequences,
                windows=self._rings,
                pinned=options,
                alone=alone,
                n_ctx=n_ctx,
            )
        except MemoryError as error:
            wanted = state_bytes(executor, executor.pinned_sizes(n_ctx, n_sequences))
            many = f" in {n_sequences} sequences" if n_sequences > 1 else ""
            raise out_of_memory(
                f"n_ctx = {n_ctx}{many}: keys, values and states of {wanted:,} bytes",
                error,
                f"give a smaller n_ctx,{' fewer sequences,' if many else ''} or a smaller type of the cache "
                "(kv)",
            ) from None
        self.copies = StateCopies(self.runner, n_sequences) if executor.recurrent else None
        self.is_plain = executor.architecture.causal and not executor.encodes

    def pinned(self, slot: int) -> Pinned:
        """A sequence that holds nothing yet, where no other one is."""
        sequence = Pinned(slot, self.n_ctx, self._rings, self.executor.recurrent)
        sequence.room = self
        return sequence

    def all_pinned(self) -> list[Pinned]:
        """All of its sequences, which hold nothing yet."""
        return [self.pinned(slot) for slot in range(self.n_sequences)]

    def compile(self, n_tokens: int, n_sequences: int, every: bool, options: CompileOptions) -> None:
        """Have the program for so many tokens of so many sequences; every: each gives logits."""
        count = 1 if self.runner.alone and n_sequences == 1 else self.n_sequences
        self.runner.pinned_program(n_tokens, count, every, options)

    def run(
        self,
        parts: Mapping[Pinned, Part],
        options: CompileOptions | None = None,
        inputs: Mapping[str, Array] | None = None,
    ) -> None:
        """Compute rows of sequences, which begin behind what these hold, in one step; they hold them then.

        Each gets the outputs; see `Runner.run`. After an error each sequence holds what it held before.
        WeightsError where scored rows are no numbers.
        """

        def read(outputs: Mapping[str, Array]) -> None:
            end = 0
            for rows, take in parts.values():
                end += rows.n_outputs
                take(outputs, end)

        with self.executor.lock:
            plan = StepPlan(tuple([rows for rows, _ in parts.values()]), options=options, inputs=inputs or {})
            try:
                are_right = list[bool]()
                for sequence, (rows, _) in parts.items():
                    are_right.append(sequence.append(rows.count))
                for error in self.runner.run(plan, read).failed.values():
                    raise error
                for sequence, is_right in zip(parts, are_right, strict=True) if self.copies else ():
                    sequence.was_computed(is_right)
            except BaseException:
                for sequence, (rows, _) in parts.items():
                    sequence.rewind(rows.start)
                raise

    def submit(self, plan: StepPlan, after: BegunPlan | None, wanted: Sequence[str]) -> BegunPlan | None:
        """Submit rows of sequences as of `Runner.submit`; these hold them then, until they are rewound."""
        with self.executor.lock:
            begun = None
            try:
                for rows in plan.rows:
                    _pinned(rows).append(rows.count)
                begun = self.runner.submit(plan, after, wanted)
            finally:
                for rows in plan.rows if begun is None else ():
                    _pinned(rows).rewind(rows.start)
            return begun

    def finish(self, begun: BegunPlan, of: Mapping[int, sequence.Sequence]) -> Computed:
        """See `Runner.finish`."""
        return self.runner.finish(begun, of)

    def run_with_others(self, sequence: Pinned, part: Part) -> None:
        """Compute the next rows of a sequence, in one step with those that wait for one."""
        self.run({sequence: part})

    def prompt(
        self, sequence: Pinned, ids: Array, cancelled: Callable[[], bool] | None
    ) -> contextlib.AbstractContextManager[int]:
        """Within, a sequence computes ids; how many of them it got by a copy before."""
        return contextlib.nullcontext(0)

    def tell(self, slot: int, known: Callable[[], Sequence[int] | None]) -> None:
        """From now on this returns the ids that a sequence holds; None where others cannot copy it."""

    def hide(self, slot: int) -> None:
        """What a sequence holds is of use to no other, as long as it is not taken anew."""

    def leave(self, sequence: Pinned, ids: Sequence[int]) -> None:
        """A sequence is used no more; it holds these ids as long as it is not taken."""

    def settle(self, slot: int) -> None:
        """What an interrupted thread has left of a sequence is over."""

    def step(self, ids: Mapping[Pinned, Array], all_logits: bool = False) -> Array:
        """Append ids to sequences in one step: what the program gives, the caller's own.

        That is logits, or embeddings, of each sequence's last id, or of all, in the order of `ids`.
        """
        executor, copies = self.executor, list[Array]()
        count = sum(map(len, ids.values()))
        if not 0 < count <= executor.n_batch or not all(map(len, ids.values())):
            raise UsageError(f"step: wanted 1 to {executor.n_batch} ids, some of each sequence; got {count}")

        for pinned, some in ids.items():
            pinned.n_prompt = pinned.n_computed + len(some)

        def take(outputs: Mapping[str, Array], end: int) -> None:
            copies.append(outputs[executor.architecture.output].copy())

        self.run(
            {
                sequence: (sequence.rows(some, len(some) if all_logits else 1), take)
                for sequence, some in ids.items()
            }
        )
        return copies[0]


def _pinned(rows: Rows) -> Pinned:
    assert isinstance(rows.sequence, Pinned)
    return rows.sequence
