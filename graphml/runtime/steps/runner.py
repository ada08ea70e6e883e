"""Runs step plans: ids and block tables into a program's inputs, the tokens that follow out.

Knows programs, arrays and plans; nothing of who waits for what, or what becomes of the tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Values
from dataclasses import replace
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from graphml.backend import FilledStateDevice, Program, RestartingState, RowCopies, TopRowsDevice
from graphml.compiler.compile import Compiled
from graphml.compiler.options import CompileOptions
from graphml.compiler.row_copies import row_copies
from graphml.compiler.top_k_outputs import SAMPLED, SAMPLING_SETTINGS
from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.runtime.blocks.drafting import DRAFT_ROWS
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.blocks.state_rows import copy_rows, state_names
from graphml.runtime.blocks.window_blocks import WindowBlocks
from graphml.runtime.blocks.window_ring import WindowRing
from graphml.runtime.plans.plan_captures import keep_captured, patched
from graphml.runtime.plans.plan_inputs import PlanInputs
from graphml.runtime.plans.plan_sources import read_sources
from graphml.runtime.plans.plan_texts import denoised_texts, pooled_texts, text_program
from graphml.runtime.plans.prompt_scores import MOST_ROWS, keep_scores
from graphml.runtime.plans.request_adapters import RequestAdapters
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.cell_mover import CellMove, move_cells, prepare_moves
from graphml.runtime.steps.computed_plan import BegunPlan, Computed, PlanUnderWay
from graphml.runtime.steps.draft_steps import draft_program, show_hidden
from graphml.runtime.steps.sampled_rows import (
    Sampled,
    begin_masks,
    drafted_rows,
    sampled_rows,
    write_draft_settings,
    write_settings,
)
from graphml.runtime.steps.state_parts import StateParts
from graphml.system.pages import out_of_memory

LOG = logging.getLogger(__name__)
Read: TypeAlias = Callable[[Mapping[str, Array]], None]


def _logged(plan: StepPlan, computed: Computed) -> Computed:
    if LOG.isEnabledFor(logging.DEBUG):
        counts = plan.n_ids, len(plan.rows)
        LOG.debug("step of %d tokens of %d sequences in %.3f ms", *counts, 1e3 * computed.seconds)
    return computed


class Runner:
    """The cells and states of an engine's sequences, and the programs that compute its plans.

    Programs are for three sizes of steps, all compiled when it is made: one row; a row for each of
    `max_sequences`; `n_rows`, the most of any step. Steps of one executor take turns.
    n_checkpoints: copies of a sequence's recurrent states. windows: of the plans' sequences; layers
    without one have the sequences' own blocks. pooling: plans have texts alone, pooled so, whose programs are
    compiled by `prepare_texts`.
    pinned: sequences have blocks of their own (`sessions.pinned`): programs are compiled as plans want
    them, by these options where a plan says nothing else, and memory is taken as it is touched, where a
    device can. alone: a step of one sequence runs by the program for one sequence. n_ctx: the most tokens of
    a sequence; 0: as many as there are cells. n_stages: of its programs, which work at different plans.
    """

    def __init__(
        self,
        executor: Executor,
        n_blocks: int,
        max_sequences: int,
        n_checkpoints: int = 0,
        windows: Iterable[WindowBlocks | WindowRing] = (),
        pooling: str = "",
        pinned: CompileOptions | None = None,
        alone: bool = False,
        n_ctx: int = 0,
    ) -> None:
        if not pooling and pinned is None:
            executor.check_continues()
        self.executor, self.max_sequences, self.n_blocks = executor, max_sequences, n_blocks
        self._pinned, self.alone = pinned, alone
        self.max_chunk = executor.max_chunk
        self.n_rows = min(executor.n_batch, max_sequences * self.max_chunk)
        self._runs_ahead = executor.has_top_k and not executor.recurrent  # whose states cannot be rolled back
        device = executor.device
        self._top_rows = None
        if isinstance(device, TopRowsDevice) and not pooling and pinned is None:
            device.prepare_top_rows()
            self._top_rows = device.top_rows
        self._finished_s = 0.0
        self._text_programs: set[tuple[str, int]] = set()  # by pooling and ids, those that are compiled
        self._adapters = RequestAdapters(pinned or executor.options)
        self.n_stages = 1
        if pinned is not None:
            graph = executor.programs.state_graph(1 if alone else max_sequences, pinned)
        elif pooling:
            graph = executor.programs.state_graph(max_sequences, replace(executor.options, pooling=pooling))
        else:
            programs = [self._program(rows) for rows in self._sizes_of_steps]
            graph = programs[0].graph
            self.n_stages = min(program.staged.n_stages if program.staged else 1 for program in programs)
        by_group, groups = {window.group: window for window in windows}, executor.cell_groups
        own = pinned or executor.options
        self.n_ctx = n_ctx or n_blocks * BLOCK_SIZE
        self._inputs = PlanInputs(
            groups, by_group, n_blocks, max_sequences, self._adapters, own, executor.long_inputs, self.n_ctx
        )
        self.of_source = set[str]()
        self.leaves = leaves = graph.leaves("state")
        if executor.encodes:  # the encoder writes what the decoder reads, in blocks of another pool
            self.of_source = set(executor.build_encoder(1, max_sequences).leaves("state"))
            graph = Graph(tuple(executor.programs.state_leaves(graph, max_sequences)), {})
        self.names = names = state_names(node for name, node in leaves.items() if name not in self.of_source)
        self.has_cells = bool(names.cells)
        try:
            with executor.open_lock.opened():
                if isinstance(device, FilledStateDevice) and pinned is None:
                    self.state = device.filled_state(graph, self.sizes)
                else:
                    self.state = device.state(graph, self.sizes)
            self._copies = row_copies(self.state, names.sequences, n_checkpoints) if n_checkpoints else None
        except MemoryError as error:
            if pinned is not None:
                raise
            of = f"an engine's keys, values and states of {n_blocks * BLOCK_SIZE} tokens"
            raise out_of_memory(of, error, "give a smaller kv_memory, or a smaller type (kv)") from None
        self._undrafted: RowCopies | None = None  # see `prepare_drafts`
        self._drafts_ready: set[bool] = set()  # with hidden rows or without
        self.parts = StateParts(self.state, leaves, self.of_source, by_group, self._copies)

    def restart(self) -> None:
        """Have zeroed states again; BackendError where the device cannot be started."""
        with self.executor.lock:
            if isinstance(self.state, RestartingState):
                self.state.restart()

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of its states: sequences, and cells of each group of layers."""
        return self._inputs.sizes

    @property
    def _sizes_of_steps(self) -> list[int]:
        return list(dict.fromkeys((1, self.max_sequences, self.n_rows)))

    def _program(self, n_rows: int, options: CompileOptions | None = None, n_outputs: int = 0) -> Compiled:
        size = next(size for size in self._sizes_of_steps if n_rows <= size)
        scored = MOST_ROWS if n_outputs > self.max_sequences else 0
        n_outputs = min(size, self.max_sequences + scored)
        return self.executor.programs.compiled(size, n_outputs, options, self.max_sequences)

    def _program_of(
        self, plan: StepPlan, alone: bool, hidden: bool = False
    ) -> tuple[Compiled, CompileOptions | None]:
        """The program of a plan's rows, and by what options; hidden: with hidden rows as outputs."""
        options = plan.options or self._pinned or self._adapters.of(plan)
        if hidden:
            options = replace(options or self.executor.options, hidden=True)
        drafts = False
        for rows in plan.rows:  # of every step, and a generator takes as long as the rest of this
            drafts = drafts or rows.n_drafted > 0 or rows.n_again > 0
        if self._pinned is not None:
            n_sequences = 1 if alone else self.max_sequences
            if drafts:
                return draft_program(self.executor, options, n_sequences), options
            every = plan.n_outputs > n_sequences
            return self.pinned_program(plan.n_rows, n_sequences, every, options), options
        if drafts and self.max_sequences < plan.n_rows <= min(DRAFT_ROWS, self.n_rows):
            return draft_program(self.executor, options, self.max_sequences), options
        return self._program(plan.n_rows, options, plan.n_outputs), options

    def pinned_program(
        self, n_rows: int, n_sequences: int, every: bool, options: CompileOptions | None
    ) -> Compiled:
        """The program of a step of pinned sequences; every: each of its rows gives logits."""
        return self.executor.programs.compiled_for(n_rows, n_sequences, every, options)

    def prepare_drafts(self, hidden: bool = False) -> None:
        """Have the program of steps with more output rows than sequences; from any thread.

        And memory for recurrent states as they were before a draft. hidden: and the programs of other steps,
        with hidden rows as outputs.
        """
        if hidden in self._drafts_ready:
            return  # and does not wait for a step
        options = replace(self.executor.options, hidden=True) if hidden else None
        if self.max_sequences < DRAFT_ROWS:
            draft_program(self.executor, options, self.max_sequences)
        for n_rows in self._sizes_of_steps if hidden else ():
            self._program(n_rows, options)
        names = self.names.sequences
        with self.executor.lock:
            if names and self._undrafted is None:
                try:
                    self._undrafted = row_copies(self.state, names, self.max_sequences)
                except MemoryError as error:
                    of = f"copies of the recurrent states of {self.max_sequences} sequences, for drafts"
                    raise out_of_memory(of, error, "give spec_type none, or fewer sequences") from None
        self._drafts_ready.add(hidden)

    def prepare_adapters(self, sequences: list[Sequence]) -> None:
        """Have programs with the adapters of a request's sequences, which are going to run; from any thread.

        UsageError as of `RequestAdapters.add`. Where they are new, steps wait until they are compiled.
        """
        with self.executor.lock:
            options = self._adapters.add(sequences)
            for n_rows in self._sizes_of_steps if options is not None else ():
                self._program(n_rows, options)

    def prepare_options(self, options: CompileOptions, all_rows: bool) -> None:
        """Have the programs of requests with these options; all_rows: prompts' rows give logits.

        From any thread. Steps wait while one of them is compiled.
        """
        for n_rows in self._sizes_of_steps:
            self._program(n_rows, options)
        if all_rows:
            self._program(self.n_rows, options, self.n_rows)

    def prepare_texts(self, pooling: str, lengths: Iterable[int]) -> None:
        """Have the programs of texts of so many ids, which are going to run; from any thread."""
        few = any(length <= self.max_sequences for length in lengths)
        wanted = {(pooling, self.n_rows), *([(pooling, self.max_sequences)] if few else [])}
        if wanted <= self._text_programs:
            return  # and does not wait for a step, in which others come together
        with self.executor.lock:
            for _, n_ids in wanted:
                text_program(self.executor, pooling, n_ids, self.max_sequences)
        self._text_programs |= wanted

    def prepare_scores(self) -> None:
        """Have the program of prompts whose rows give logits, which are going to run; from any thread."""
        with self.executor.lock:
            self._program(self.n_rows, n_outputs=self.n_rows)

    def run(self, plan: StepPlan, read: Read | None = None) -> Computed:
        """Compute a plan, and sample what follows each sequence that has output rows.

        read: gets the outputs of the plan's rows by name, which are good as long as it runs; then no token is
        sampled. Logits are of the plan's output rows, in their order.
        """
        executor = self.executor
        with executor.lock:
            if plan.n_rows > len(plan.rows) or plan.sources or plan.texts:
                executor.programs.check_file()
            try:
                return _logged(plan, self._computed(plan, read))
            except MemoryError as error:
                raise executor.programs.out_of_memory_of("a step", plan.n_ids, error) from None

    def _computed(self, plan: StepPlan, read: Read | None) -> Computed:
        executor, start = self.executor, time.perf_counter()
        self._prepare(plan)  # before texts: a block that cells move from may be one of theirs now
        pooled: dict[Sequence, Array] = {}
        of_texts: dict[Sequence, Exception] = {}
        if plan.texts:
            pooled = pooled_texts(executor, plan, self.state, self.max_sequences, self._inputs.fill)
            of_texts = denoised_texts(pooled, executor.file.path)
        if plan.sources:
            read_sources(executor, plan, self.state, self.n_blocks * BLOCK_SIZE, self.max_sequences)
        if not plan.rows:
            return Computed([], time.perf_counter() - start, failed=of_texts, pooled=pooled)
        shows = read is None and any(
            rows.sequence.drafts is not None and rows.sequence.drafts.reads_hidden for rows in plan.rows
        )
        alone = self.alone and len(plan.rows) == 1
        compiled, options = self._program_of(plan, alone, shows)
        program = compiled.program
        dims = self._inputs.fill(program.inputs, plan, options, alone)
        if SAMPLING_SETTINGS in program.inputs:
            write_settings(program.inputs, plan.sampled)
            write_draft_settings(program.inputs, plan.drafted)
        executor.n_steps += 1
        masks_ready = begin_masks(plan.sampled.values()) if read is None else None
        try:
            if plan.options is not None and plan.options.patch:
                with patched(plan):
                    outputs = program.run(dims, self.state)
            else:
                outputs = program.run(dims, self.state)
        finally:
            if masks_ready is not None:
                masks_ready()
        if self._copies is not None:
            self._keep_states(plan, self._copies)
        failed = of_texts | self._keep(plan, outputs)
        if read is not None:
            read(outputs)
            return Computed([], time.perf_counter() - start, failed=failed, pooled=pooled)
        if shows:
            show_hidden(outputs, plan)
        tokens = self._sampled(plan, outputs)
        first = dict(zip(plan.sampled.values(), tokens, strict=True))
        further = drafted_rows(outputs, plan.drafted, first, executor.n_vocab, executor.file.path)
        seconds = time.perf_counter() - start
        return Computed(tokens, seconds, failed=failed, further=further, pooled=pooled)

    def begin(self, plan: StepPlan) -> PlanUnderWay:
        """Submit a plan to stages; for what is submitted after it all states are as if it were computed.

        Source texts, texts, drafts and patches are computed at once, and with them what no stages compute.
        """
        executor, begin_s = self.executor, time.perf_counter()
        drafts = any(rows.sequence.drafts is not None for rows in plan.rows)
        patches = plan.options is not None and bool(plan.options.patch)
        with executor.lock:
            staged = None
            if not (plan.sources or plan.texts or drafts or patches):
                compiled, options = self._program_of(plan, alone=False)
                staged = compiled.staged
            if staged is None:
                done = self.run(plan)
                return PlanUnderWay(plan, lambda: done, is_done=True)
            if plan.n_rows > len(plan.rows):
                executor.programs.check_file()
            self._prepare(plan)
            dims = self._inputs.fill(compiled.program.inputs, plan, options)
            executor.n_steps += 1
            outputs_of = staged.submit(dims, self.state)
            if self._copies is not None:
                self._keep_states(plan, self._copies)
        masks_ready = begin_masks(plan.sampled.values())

        def computed() -> Computed:
            try:
                outputs = outputs_of()
            finally:
                masks_ready()
            failed, tokens = self._keep(plan, outputs), self._sampled(plan, outputs)
            now = time.perf_counter()
            seconds, self._finished_s = now - max(begin_s, self._finished_s), now
            return _logged(plan, Computed(tokens, seconds, failed=failed))

        return PlanUnderWay(plan, computed, masks_ready)

    def read_cells(self, program: Program, plan: StepPlan, read: Read) -> None:
        """Run a program of another model that reads these cells and writes none; read: see `run`."""
        with self.executor.lock:
            alone = self.alone and len(plan.rows) == 1
            dims = self._inputs.fill(program.inputs, plan, None, alone)
            self.executor.n_steps += 1
            read(program.run(dims, self.state))

    def _sampled(self, plan: StepPlan, outputs: Mapping[str, Array]) -> list[Sampled]:
        return sampled_rows(
            outputs, plan.sampled, self.executor.n_vocab, self.executor.file.path, self._top_rows
        )

    @staticmethod
    def _keep_states(plan: StepPlan, copies: RowCopies) -> None:
        for rows in plan.rows:
            if rows.keep is not None:
                copies.keep(rows.sequence.slot, rows.keep)

    def _keep(self, plan: StepPlan, outputs: Mapping[str, Array]) -> dict[Sequence, Exception]:
        """What sequences keep of a step besides tokens; errors of those whose scored rows are no numbers."""
        if plan.options is not None and plan.options.keep:
            keep_captured(outputs, plan)
        scored = any(map(attrgetter("n_scored"), plan.rows))
        return keep_scores(outputs, plan, self.executor.file.path) if scored else {}

    def submit(self, plan: StepPlan, after: BegunPlan | None, wanted: Values[str]) -> BegunPlan | None:
        """Submit a plan, to be read by `finish`; None where the device cannot. wanted: outputs to be read.

        after: a submitted plan of as many rows; its tokens, as the device samples them, are this one's ids.
        """
        if not self._runs_ahead:
            return None
        executor = self.executor
        with executor.lock:
            alone = self.alone and len(plan.rows) == 1
            compiled, options = self._program_of(plan, alone)
            ahead, inputs = compiled.ahead, compiled.program.inputs
            lost = after is not None and executor.n_steps != after.number  # what it has sampled
            if lost or ahead is None:
                return None
            self._prepare(plan)
            dims = self._inputs.fill(inputs, plan, options, alone)
            write_settings(inputs, plan.sampled, n_before=0 if after is None else 1)
            executor.n_steps += 1
            fed = {} if after is None else {"tokens": SAMPLED}
            ready = ahead.begin(dims, self.state, fed, wanted)
            return BegunPlan(plan, executor.n_steps, ready, time.perf_counter())

    def finish(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:
        """Wait for a submitted plan; of: the output rows that count, and whose they are."""
        outputs, of_model = begun.outputs(), (self.executor.n_vocab, self.executor.file.path)
        samples = {name: values for name, values in outputs.items() if name != "logits"}
        tokens = sampled_rows(samples, of, *of_model)
        needs_row = None in tokens
        if needs_row and "logits" in outputs:
            tokens = sampled_rows(outputs, of, *of_model)
        now = time.perf_counter()
        seconds, self._finished_s = now - max(begun.begin_s, self._finished_s), now
        device_tokens = tuple(outputs[SAMPLED].tolist())
        computed = Computed(tokens, seconds, device_tokens=device_tokens, needs_row=needs_row)
        return _logged(begun.plan, computed)

    def _prepare(self, plan: StepPlan) -> None:
        """What comes before the rows of a plan: its chunks are checked, states restored, cells moved.

        States go back to before a draft that was wrong, or are kept before one that is tried.
        """
        for rows in plan.rows:
            if rows.count > self.max_chunk:
                raise UsageError(
                    f"step: {self.executor.architecture.name} has states of its own, which are read and "
                    f"written token by token: wanted 1 token of each text; got {rows.count}"
                )
            if rows.restore is not None and self._copies is not None:
                self._copies.restore(rows.restore, rows.sequence.slot)
        undrafted = self._undrafted
        for rows in plan.rows if undrafted is not None else ():
            slot = rows.sequence.slot
            if undrafted is not None and rows.n_again:
                undrafted.restore(slot, slot)
            elif undrafted is not None and rows.n_drafted:
                undrafted.keep(slot, slot)
        for rows in plan.rows:
            for move in rows.moves:
                for cells in self._inputs.of_blocks:
                    n_cells = self.n_blocks * BLOCK_SIZE
                    cell_move = CellMove(
                        move.sources, move.targets, move.difference, n_cells, self.n_ctx, cells
                    )
                    move_cells(self.executor, self.state, cell_move)
            if rows.states_of is not None:
                source, target = np.array([rows.states_of]), np.array([rows.sequence.slot])
                copy_rows(self.state, self.names.sequences, source, target)

    def prepare_moves(self, shifts: bool) -> None:
        """Compile what copies cells or, for shifts, what moves positions, so that no step waits for it."""
        prepare_moves(self.executor, self.state, rotates=shifts)
