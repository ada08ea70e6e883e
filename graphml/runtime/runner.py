"""Runs step plans: ids and block tables into a program's inputs, the tokens that follow out.

Knows programs, arrays and plans; nothing of who waits for what, or what becomes of the tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from graphml.backend import FilledStateDevice, RowCopies, TopRowsDevice
from graphml.compiler.compile import Compiled
from graphml.compiler.options import CompileOptions
from graphml.compiler.row_copies import row_copies
from graphml.compiler.top_k_outputs import SAMPLED
from graphml.ir.graph import Graph
from graphml.runtime.begun_masks import begin_masks
from graphml.runtime.cell_mover import CellMove, move_cells, prepare_moves
from graphml.runtime.computed_plan import BegunPlan, Computed
from graphml.runtime.draft_steps import draft_program, show_hidden
from graphml.runtime.drafting import DRAFT_ROWS
from graphml.runtime.evaluation import check_continues
from graphml.runtime.executor import Executor
from graphml.runtime.paged_cache import BLOCK_SIZE
from graphml.runtime.plan_inputs import PlanInputs
from graphml.runtime.plan_sources import read_sources
from graphml.runtime.plan_texts import pooled_texts, text_program
from graphml.runtime.prompt_scores import MOST_ROWS, keep_scores
from graphml.runtime.request_adapters import RequestAdapters
from graphml.runtime.sampled_rows import (
    AHEAD_OUTPUTS,
    drafted_rows,
    sampled_rows,
    samples_ahead,
    write_draft_settings,
    write_settings,
)
from graphml.runtime.sequence import Sequence
from graphml.runtime.source_text import encoder_program
from graphml.runtime.state_parts import StateParts
from graphml.runtime.state_rows import copy_rows, state_names
from graphml.runtime.step_plan import Rows, StepPlan
from graphml.runtime.window_blocks import WindowBlocks
from graphml.system.pages import out_of_memory


class Runner:
    """The cells and states of an engine's sequences, and the programs that compute its plans.

    Programs are for three sizes of steps, all compiled when it is made: one row; a row for each of
    `max_sequences`; `n_rows`, the most of any step. Steps of one executor take turns with those of its
    sessions.
    n_checkpoints: copies of a sequence's recurrent states. windows: of the plans' sequences; layers
    without one have the sequences' own blocks. pooling: plans have texts alone, pooled so, whose programs are
    compiled by `prepare_texts`.
    """

    def __init__(
        self,
        executor: Executor,
        n_vocab: int,
        n_blocks: int,
        max_sequences: int,
        n_checkpoints: int = 0,
        windows: Iterable[WindowBlocks] = (),
        pooling: str = "",
    ) -> None:
        if not pooling:
            check_continues(executor)
        self._executor, self.max_sequences, self.n_blocks = executor, max_sequences, n_blocks
        self.max_chunk, self._n_vocab = executor.max_chunk, n_vocab
        self.n_rows = min(executor.n_batch, max_sequences * self.max_chunk)
        self._runs_ahead = executor.has_top_k and not executor.recurrent  # whose states cannot be rolled back
        device = executor.device
        self._top_rows = None
        if isinstance(device, TopRowsDevice) and not pooling:
            device.prepare_top_rows()
            self._top_rows = device.top_rows
        self._finished_s = 0.0
        self._text_programs: set[tuple[str, int]] = set()  # by pooling and ids, those that are compiled
        self._adapters = RequestAdapters(executor.options)
        if pooling:
            graph = executor.programs.state_graph(max_sequences, replace(executor.options, pooling=pooling))
        else:
            graph, *_ = [self._program(rows).graph for rows in self._sizes_of_steps]
        by_group = {window.group: window for window in windows}
        self._inputs = PlanInputs(
            executor.cell_groups, by_group, n_blocks, max_sequences, self._adapters, executor.options
        )
        of_source = set[str]()
        leaves = graph.leaves("state")  # those that tokens go on from
        if executor.encodes:  # the encoder writes what the decoder reads, in blocks of another pool
            of_source = set(encoder_program(executor, max_sequences).graph.leaves("state"))
            graph = Graph(tuple(executor.programs.state_leaves(graph, max_sequences)), {})
        self._names = names = state_names(node for name, node in leaves.items() if name not in of_source)
        self.has_cells = bool(names.cells)
        try:
            made = device.filled_state if isinstance(device, FilledStateDevice) else device.state
            self._state = made(graph, self._inputs.sizes)
            self._copies = row_copies(self._state, names.sequences, n_checkpoints) if n_checkpoints else None
        except MemoryError as error:
            of = f"an engine's keys, values and states of {n_blocks * BLOCK_SIZE} tokens"
            raise out_of_memory(of, error, "give a smaller kv_memory, or a smaller type (kv)") from None
        self._undrafted: RowCopies | None = None  # see `prepare_drafts`
        self._drafts_ready: set[bool] = set()  # with hidden rows or without
        self.parts = StateParts(self._state, leaves, of_source, by_group, self._copies)

    @property
    def _sizes_of_steps(self) -> list[int]:
        return list(dict.fromkeys((1, self.max_sequences, self.n_rows)))

    def _program(self, n_rows: int, options: CompileOptions | None = None, n_outputs: int = 0) -> Compiled:
        size = next(size for size in self._sizes_of_steps if n_rows <= size)
        scored = MOST_ROWS if n_outputs > self.max_sequences else 0
        n_outputs = min(size, self.max_sequences + scored)
        return self._executor.programs.compiled(size, n_outputs, options, self.max_sequences)

    def _program_of(self, plan: StepPlan, options: CompileOptions | None) -> Compiled:
        drafts = any(one.n_drafted or one.n_again for one in plan.rows)
        if drafts and self.max_sequences < plan.n_rows <= min(DRAFT_ROWS, self.n_rows):
            return draft_program(self._executor, options, self.max_sequences)
        return self._program(plan.n_rows, options, plan.n_outputs)

    def prepare_drafts(self, hidden: bool = False) -> None:
        """Have the program of steps with more output rows than sequences; from any thread.

        And memory for recurrent states as they were before a draft. hidden: and the programs of other steps,
        with hidden rows as outputs.
        """
        if hidden in self._drafts_ready:
            return  # and does not wait for a step
        options = replace(self._executor.options, hidden=True) if hidden else None
        if self.max_sequences < DRAFT_ROWS:
            draft_program(self._executor, options, self.max_sequences)
        for n_rows in self._sizes_of_steps if hidden else ():
            self._program(n_rows, options)
        names = self._names.sequences
        with self._executor.lock:
            if names and self._undrafted is None:
                try:
                    self._undrafted = row_copies(self._state, names, self.max_sequences)
                except MemoryError as error:
                    of = f"copies of the recurrent states of {self.max_sequences} sequences, for drafts"
                    raise out_of_memory(of, error, "give spec_type none, or fewer sequences") from None
        self._drafts_ready.add(hidden)

    def prepare_adapters(self, sequences: list[Sequence]) -> None:
        """Have programs with the adapters of a request's sequences, which are going to run; from any thread.

        UsageError as of `RequestAdapters.add`. Where they are new, steps wait until they are compiled.
        """
        with self._executor.lock:
            options = self._adapters.add(sequences)
            for n_rows in self._sizes_of_steps if options is not None else ():
                self._program(n_rows, options)

    def prepare_texts(self, pooling: str, lengths: Iterable[int]) -> None:
        """Have the programs of texts of so many ids, which are going to run; from any thread."""
        few = any(one <= self.max_sequences for one in lengths)
        wanted = {(pooling, self.n_rows), *([(pooling, self.max_sequences)] if few else [])}
        if wanted <= self._text_programs:
            return  # and does not wait for a step, in which others come together
        with self._executor.lock:
            for _, n_ids in wanted:
                text_program(self._executor, pooling, n_ids, self.max_sequences)
        self._text_programs |= wanted

    def prepare_scores(self) -> None:
        """Have the program of prompts whose rows give logits, which are going to run; from any thread."""
        with self._executor.lock:
            self._program(self.n_rows, n_outputs=self.n_rows)

    def run(self, plan: StepPlan, logits: bool = False) -> Computed:
        """Compute a plan, and sample what follows each sequence that has output rows; logits: copy them."""
        executor = self._executor
        with executor.lock:
            if plan.n_ids > len(plan.rows):
                executor.programs.check_file()
            try:
                return self._computed(plan, logits)
            except MemoryError as error:
                of = f"{executor.file.path}: a step of {plan.n_ids} tokens"
                raise out_of_memory(of, error, "give a smaller n_batch, or fewer threads") from None

    def _computed(self, plan: StepPlan, logits: bool) -> Computed:
        executor, start = self._executor, time.perf_counter()
        executor.check_chunks(rows.count for rows in plan.rows)
        self._restore(plan)
        self._before_drafts(plan)
        self._move(plan)  # before texts: a block that cells move from may be one of theirs now
        pooled = pooled_texts(executor, plan, self._state, self.max_sequences, self._inputs.fill)
        if not plan.rows:
            return Computed([], time.perf_counter() - start, pooled=pooled)
        options = self._adapters.of(plan)
        reading = [one for one in plan.rows if (drafts := one.sequence.drafts) and drafts.reads_hidden]
        if reading:
            options = replace(options or executor.options, hidden=True)
        program = self._program_of(plan, options).program
        read_sources(executor, plan, self._state, self.n_blocks * BLOCK_SIZE, self.max_sequences)
        dims = self._inputs.fill(program.inputs, plan, options)
        write_settings(program.inputs, plan.sampled)
        write_draft_settings(program.inputs, plan.drafted)
        executor.n_steps += 1
        masks_ready = begin_masks(plan.sampled.values())
        try:
            outputs = program.run(dims, self._state)
        finally:
            masks_ready()
        self._keep(plan)
        if reading:
            show_hidden(outputs, plan)
        tokens = sampled_rows(outputs, plan.sampled, self._n_vocab, executor.file.path, self._top_rows)
        failed = keep_scores(outputs, plan, executor.file.path)
        first = dict(zip(plan.sampled.values(), tokens, strict=True))
        further = drafted_rows(outputs, plan.drafted, first, self._n_vocab, executor.file.path)
        rows = outputs["logits"][: plan.n_outputs].copy() if logits else None
        seconds = time.perf_counter() - start
        return Computed(tokens, seconds, rows, failed=failed, further=further, pooled=pooled)

    def begin(self, plan: StepPlan, after: BegunPlan | None = None) -> BegunPlan | None:
        """Submit a plan; None where it cannot be, or where a device gains nothing by it.

        after: a submitted plan of as many rows, the tokens of which this one computes, whatever they are.
        """
        if not self._runs_ahead:
            return None
        sequences = [one.sequence for one in plan.rows]
        samples = all(samples_ahead(one.request.params) and one.drafts is None for one in sequences)
        if not samples or plan.sources or plan.texts or any(map(_waits, plan.rows)):
            return None
        executor = self._executor
        with executor.lock:
            options = self._adapters.of(plan)
            compiled = self._program(plan.n_rows, options)
            ahead, inputs = compiled.ahead, compiled.program.inputs
            lost = after is not None and executor.n_steps != after.number  # what it has sampled
            if lost or ahead is None:
                return None
            self._move(plan)
            dims = self._inputs.fill(inputs, plan, options)
            write_settings(inputs, plan.sampled, n_before=0 if after is None else 1)
            executor.n_steps += 1
            fed = {} if after is None else {"tokens": SAMPLED}
            ready = ahead.begin(dims, self._state, fed, AHEAD_OUTPUTS)
            return BegunPlan(plan, executor.n_steps, ready, time.perf_counter())

    def finish(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:
        """Wait for a submitted plan; of: the output rows that count, and whose they are."""
        outputs = begun.outputs()
        tokens = sampled_rows(outputs, of, self._n_vocab, self._executor.file.path)
        now = time.perf_counter()
        seconds, self._finished_s = now - max(begun.begin_s, self._finished_s), now
        return Computed(tokens, seconds, device_tokens=tuple(outputs[SAMPLED].tolist()))

    def _restore(self, plan: StepPlan) -> None:
        """All before any is kept: a plan may restore from a copy that another is kept in after it."""
        for rows in plan.rows:
            if rows.restore is not None and self._copies is not None:
                self._copies.restore(rows.restore, rows.sequence.slot)

    def _before_drafts(self, plan: StepPlan) -> None:
        """States go back to before a draft that was wrong, or are kept before one that is tried."""
        if self._undrafted is None:
            return
        for rows in plan.rows:
            slot = rows.sequence.slot
            if rows.n_again:
                self._undrafted.restore(slot, slot)
            elif rows.n_drafted:
                self._undrafted.keep(slot, slot)

    def _keep(self, plan: StepPlan) -> None:
        for rows in plan.rows:
            if rows.keep is not None and self._copies is not None:
                self._copies.keep(rows.sequence.slot, rows.keep)

    def prepare_moves(self, shifts: bool) -> None:
        """Compile what copies cells or, for shifts, what moves positions, so that no step waits for it."""
        prepare_moves(self._executor, self._state, rotates=shifts)

    def _move(self, plan: StepPlan) -> None:
        """What comes before the rows of a plan: moved cells, and copies of states."""
        for rows in plan.rows:
            for move in rows.moves:
                n_cells = self.n_blocks * BLOCK_SIZE
                for cells in self._inputs.of_blocks:
                    made = CellMove(move.sources, move.targets, move.difference, n_cells, cells)
                    move_cells(self._executor, self._state, made)
            if rows.states_of is not None:
                source, target = np.array([rows.states_of]), np.array([rows.sequence.slot])
                copy_rows(self._state, self._names.sequences, source, target)


def _waits(rows: Rows) -> bool:
    """Whether more than its own row on the device decides what follows."""
    return bool(rows.n_scored) or rows.sequence.guidance is not None
