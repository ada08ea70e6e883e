"""A runner without a model that knows every id of every cell, and random requests for a scheduler."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.cell_groups import CellGroup
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.overflow import Overflow, n_dropped
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.blocks.window_blocks import WindowBlocks, WindowRoom
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.speculation import accept, give_back
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.plans.step_plan import Rows, StepPlan

SIZE = 4
MOST_IDS = 16  # of a step
OPTIONS = [None, None, CompileOptions(keep=("q",)), CompileOptions(keep=("k",))]
KINDS = ["attention", "hybrid", "recurrent", "encodes"]
"""What a sequence has: cells; cells and states; states; cells and a source text."""
STOPS = Overflow()


def next_id(ids: list[int]) -> int:
    """What the made-up model continues ids with: it depends on all of them."""
    return (sum((i + 1) * one for i, one in enumerate(ids)) * 31 + len(ids)) % 97


def keys_of(ids: Iterable[int]) -> list[int]:
    """What the cells of ids hold: as keys and values do, each depends on all ids up to its own."""
    return list(itertools.accumulate(ids, lambda before, one: hash((before, one))))


class Runner:
    """Computes plans on cells and states that it keeps itself, and checks that what a row sees is its own.

    A state is all ids that changed it since position 0; copies of states are those of a recurrent model.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.pool = scheduler, scheduler.pool
        self.checkpoints = scheduler.checkpoints
        self.with_cells = self.checkpoints is None or self.checkpoints._with_cells
        self.sources: dict[int, tuple[bytes, int]] = {}  # by cell
        self.states: dict[int, tuple[int, ...]] = {}  # by slot
        self.copies: dict[int, tuple[int, ...]] = {}
        self.undrafted: dict[int, tuple[int, ...]] = {}  # by slot: states before a draft
        self.cells = [0] * (self.pool.n_blocks * SIZE)
        self.of_windows = [[0] * (window.n_blocks * SIZE) for window in self.pool.windows]
        self.max_tokens: dict[Sequence, int] = {}
        self.finished: list[Sequence] = []
        self.n_steps = self.n_sources = self.n_drafted = self.n_accepted = self.n_texts = 0
        self.n_again = 0
        self.expected: dict[Sequence, list[int]] = {}

    def move(self, rows: Rows) -> None:
        """Move cells; a sequence that has forgotten ids holds the keys of those that are left."""
        one = rows.sequence
        if rows.states_of is not None and rows.states_of in self.states:
            self.states[one.slot] = self.states[rows.states_of]
        for move in rows.moves:
            for source, target in zip(move.sources.tolist(), move.targets.tolist(), strict=True):
                self.cells[target] = self.cells[source]
            if move.difference:
                keep = one.request.full.kept(one.request.n_prompt, one.request.begins, self.scheduler.n_ctx)
                del self.expected[one][keep : keep - move.difference]
                assert self.expected[one] != keys_of(one.ids[: rows.start])

    def keys(self, one: Sequence) -> list[int]:
        """What its cells have to hold: as it was computed, of ids that it may have forgotten since."""
        found = self.expected.setdefault(one, [])
        if not one.moved:
            found[:] = keys_of(one.ids[: one.n_computed])
        else:
            found += keys_of(one.ids[: one.n_computed])[len(found) :]
        return found

    def run_or_fail(self, plan: StepPlan, chance: random.Random) -> None:
        """Some steps fail before anything is moved or computed, and end their sequences."""
        if chance.random() >= 0.03:
            self.run(plan)
            return
        for rows in plan.all_rows:
            self.scheduler.remove(rows.sequence)

    def run(self, plan: StepPlan) -> None:
        self.n_steps += 1
        check_company(plan)
        writes: Counter[int] = Counter()
        for rows in plan.rows:
            if rows.restore is not None:
                self.states[rows.sequence.slot] = self.copies[rows.restore]
        for rows in plan.rows:
            self.move(rows)
        self.pool_texts(plan)
        self.read_sources(plan)
        for rows in plan.rows:
            one = rows.sequence
            if self.checkpoints is not None:
                self.advance_state(rows)
            source = one.request.source
            for i, cell in enumerate(source_cells(one)):
                assert self.sources[cell] == (source.tobytes(), i)
            assert one.status is Status.RUNNING
            assert rows.first_new == one.n_computed
            assert 0 < rows.count - rows.n_again - rows.n_drafted <= one.n_behind
            assert not rows.n_drafted or rows.keep is None
            self.n_again += rows.n_again
            assert rows.n_drafted == len(one.draft) if rows.n_drafted else rows.n_outputs <= 1
            keys = keys_of([*one.ids, *one.draft])
            for position in range(rows.start, rows.start + rows.count):
                cell = one.blocks[position // SIZE] * SIZE + position % SIZE
                writes[cell] += 1
                self.cells[cell] = keys[position]
        assert not writes or max(writes.values()) == 1  # no cell belongs to two
        self.check_windows(plan)
        self.keep(plan)
        self.scheduler.computed(plan)
        for text in plan.texts:
            self.scheduler.remove(text)
            self.finished.append(text)
        for rows in plan.rows:
            one = rows.sequence
            keys = self.keys(one)
            assert len(keys) == one.n_computed
            for p in range(one.n_computed if self.with_cells else 0):
                assert self.cells[one.blocks[p // SIZE] * SIZE + p % SIZE] == keys[p]
            if not rows.n_outputs:
                assert one.n_behind
                continue
            assert not one.n_behind
            self.go_on(one)
            self.n_drafted += rows.n_drafted
            self.go_on_with_draft(one, one.draft[: rows.n_drafted], len(one.ids) + rows.n_drafted)

    def go_on_with_draft(self, one: Sequence, draft: list[int], length: int) -> None:
        """A token is sampled behind each id of a draft that is right; what is wrong is given back."""
        for drafted in draft:
            if one.status is not Status.RUNNING or one.ids[-1] != drafted:
                break
            accept(one, self.pool)
            last = one.n_computed - 1
            assert self.cells[one.blocks[last // SIZE] * SIZE + last % SIZE] == self.keys(one)[last]
            self.n_accepted += 1
            self.go_on(one)
        if one.status is Status.RUNNING and draft:
            give_back(one, self.pool, was_right=len(one.ids) == length)
            assert len(one.blocks) <= -(-len(one.ids) // SIZE)

    def go_on(self, one: Sequence) -> None:
        """A token is sampled."""
        one.ids.append(next_id(one.ids))
        full = len(one.ids) >= self.scheduler.n_ctx and not one.request.full.shifts
        if one.n_generated >= self.max_tokens[one] or full:
            self.scheduler.remove(one)
            self.finished.append(one)

    def windowed(self, window: WindowBlocks, one: Sequence, position: int) -> int:
        """The cell of a position in layers with a window."""
        block = int(window.of[one.blocks[position // SIZE]])
        assert 0 <= block < window.n_blocks
        return block * SIZE + position % SIZE

    def check_windows(self, plan: StepPlan) -> None:
        """All rows are written; each sees what is its own in its window."""
        if not self.pool.windows:
            return
        keys = [keys_of([*rows.sequence.ids, *rows.sequence.draft]) for rows in plan.rows]
        rows_in_windows = [
            (rows, key, *window)
            for rows, key in zip(plan.rows, keys, strict=True)
            for window in zip(self.pool.windows, self.of_windows, strict=True)
        ]
        for rows, key, window, cells in rows_in_windows:
            for position in range(rows.start, rows.start + rows.count):
                cells[self.windowed(window, rows.sequence, position)] = key[position]
        for rows, key, window, cells in rows_in_windows:
            one, group = rows.sequence, window.group
            for position in range(rows.start, rows.start + rows.count):
                for seen in range(group.first_seen(position), position + 1):
                    assert cells[self.windowed(window, one, seen)] == key[seen]

    def pool_texts(self, plan: StepPlan) -> None:
        """Texts are computed before all rows, whole, in cells and slots that are nobody else's."""
        assert len({one.request.pooling for one in plan.texts}) <= 1
        others = {block for one in self.scheduler.running if one not in plan.texts for block in one.blocks}
        for rows in plan.text_rows:
            one = rows.sequence
            assert one.status is Status.RUNNING
            assert not others & set(one.blocks)
            others |= set(one.blocks)
            for position in range(len(one.ids)):
                self.cells[one.blocks[position // SIZE] * SIZE + position % SIZE] = -1
                for window, cells in zip(self.pool.windows, self.of_windows, strict=True):
                    cells[self.windowed(window, one, position)] = -1
            self.states[one.slot] = ()
            self.n_texts += 1

    def read_sources(self, plan: StepPlan) -> None:
        """An encoder reads whole texts, of sequences that begin to run."""
        in_step = {rows.sequence for rows in plan.rows}
        assert plan.n_source_ids <= MOST_IDS
        for one in plan.sources:
            assert one in in_step
            for i, cell in enumerate(source_cells(one)):
                self.sources[cell] = one.request.source.tobytes(), i
            self.n_sources += 1

    def keep(self, plan: StepPlan) -> None:
        """Copies of states are made, each in a place of its own."""
        kept = {rows.keep: self.states[rows.sequence.slot] for rows in plan.rows if rows.keep is not None}
        assert len(kept) == sum(rows.keep is not None for rows in plan.rows)
        self.copies |= kept

    def advance_state(self, rows: Rows) -> None:
        """The states that a sequence's rows read are those of exactly the ids before them."""
        one = rows.sequence
        if rows.n_again:
            self.states[one.slot] = self.undrafted[one.slot]
        elif rows.n_drafted:
            self.undrafted[one.slot] = self.states[one.slot]
        before = self.states.get(one.slot, ()) if rows.start else ()
        assert before == tuple(one.ids[: rows.start])
        self.states[one.slot] = tuple([*one.ids, *one.draft][: rows.start + rows.count])

    def check(self) -> None:
        """Blocks are held by running sequences alone, each as often as it is in their tables."""
        held = [0] * self.pool.n_blocks
        for one in self.scheduler.running:
            assert len(one.blocks) * SIZE >= one.n_computed
            for block in one.blocks:
                held[block] += 1
        assert held == self.pool._references
        assert self.pool.n_free == held.count(0)
        for window in self.pool.windows:
            counts: Counter[int] = Counter()
            for one in self.scheduler.running:
                first = window.group.first_seen(one.n_computed) // SIZE
                counts.update(int(window.of[block]) for block in one.blocks[first:])
            assert [counts[block] for block in range(window.n_blocks)] == window._holders
            assert window.n_free == window.n_blocks - len(counts)
        slots = [one.slot for one in self.scheduler.running]
        assert len(set(slots)) == len(slots)
        assert all(slot >= 0 for slot in slots)
        sources = Counter(block for one in self.scheduler.running for block in one.source_blocks)
        pool = self.scheduler.sources.pool
        assert [sources[block] for block in range(pool.n_blocks)] == pool._references
        for one in self.scheduler.waiting:
            assert not one.blocks
            assert not one.n_again
            assert not one.source_blocks
            assert one.slot == -1
        if self.checkpoints is not None:
            used = [one.at for one in self.checkpoints._kept]
            assert sorted([*used, *self.checkpoints._free]) == list(range(self.checkpoints.count))
            for checkpoint in self.checkpoints._kept:
                ids = np.array(self.copies[checkpoint.at], np.int32)
                assert (len(ids), ids.tobytes()) == (checkpoint.n, checkpoint.ids)


def check_company(plan: StepPlan) -> None:
    """Its sequences may share a step, whose programs have their options."""
    for rows in plan.rows:
        assert rows.sequence.company == plan.rows[0].sequence.company
        assert rows.sequence.request.options == plan.options


def source_cells(sequence: Sequence) -> list[int]:
    """Those of its source text."""
    blocks = sequence.source_blocks
    return [blocks[i // SIZE] * SIZE + i % SIZE for i in range(len(sequence.request.source))]


def alone(ids: list[int], max_tokens: int, n_ctx: int, full: Overflow = STOPS) -> list[int]:
    """What a sequence becomes with nobody beside it."""
    found = list(ids)
    for _ in range(max_tokens):
        if len(found) >= n_ctx and not full.shifts:
            break
        if len(found) >= n_ctx:
            keep = full.kept(len(ids), False, n_ctx)
            del found[keep : keep + n_dropped(len(found), keep, 1, n_ctx)]
        found.append(next_id(found))
    return found


def draft_of(one: Sequence, chance: random.Random) -> list[int]:
    """A draft that is right up to a random place, for a sequence that is at its latest id."""
    ids = list(one.ids)
    if one.n_behind != 1:
        return []
    for _ in range(chance.randint(0, 9)):
        ids.append(next_id(ids))
    wrong = [97] * chance.randint(0, 3)
    return [*ids[len(one.ids) :], *wrong]


def play(
    seed: int,
    n_requests: int,
    constant_hash: bool = False,
    keep: bool = True,
    kind: str = "attention",
    groups: Iterable[CellGroup] = (),
    drafts: bool = False,
    texts: bool = False,
    probed: bool = False,
) -> Runner:
    """Random arrivals, prompts with shared beginnings, lengths, keys, aborts; every request ends."""
    chance = random.Random(seed)
    n_blocks = chance.randint(4, 24)
    n_ctx = chance.randint(3, n_blocks * SIZE)
    hash_block = {"hash_block": lambda parent, tokens: b""} if constant_hash else {}
    max_sequences = chance.randint(1, 6)
    rooms = [WindowRoom(group, chance.randint(1, max_sequences), n_ctx, 16, SIZE) for group in groups]
    windows = [WindowBlocks(room, n_blocks) for room in rooms]
    pool = BlockPool(n_blocks, SIZE, keep, **hash_block, windows=windows)
    checkpoints = None
    if kind in ("hybrid", "recurrent") and keep:
        apart = chance.choice([SIZE, 2 * SIZE])
        checkpoints = Checkpoints(chance.randint(1, 9), SIZE, kind == "hybrid", apart)
    cap = chance.randint(1, 12)
    recurrent = kind in ("hybrid", "recurrent")
    scheduler = Scheduler(pool, max_sequences, n_ctx, cap, recurrent=recurrent, checkpoints=checkpoints)
    overflows = ["stop", "shift"] if kind == "attention" and not windows else ["stop"]
    runner, failures = Runner(scheduler), random.Random(f"steps that fail {seed}")
    beginnings = [[chance.randint(0, 2) for _ in range(3 * SIZE)] for _ in range(3)]
    made: list[tuple[Sequence, list[int], int]] = []
    quiet = 0
    while len(made) < n_requests or scheduler:
        if len(made) < n_requests and (chance.random() < 0.5 or not scheduler):
            start = chance.choice(beginnings)[: chance.randint(0, 3 * SIZE)]
            ids = (start + [chance.randint(0, 2) for _ in range(chance.randint(1, 9))])[: n_ctx - 1]
            size = chance.randint(1, min(MOST_IDS, n_ctx)) if kind == "encodes" else 0
            source = np.full(size, chance.randint(0, 1), np.int32)
            pooling = chance.choice(["", "", "", "mean", "last"]) if texts else ""
            n = 1 if pooling else chance.choice([1, 1, 2, 5])
            options = chance.choice(OPTIONS) if probed and not pooling else None
            patches = {"q": abs} if options and chance.random() < 0.3 else {}
            request = Request(
                np.array(ids, np.int32), key=chance.choice("abc"), weight=chance.choice([0.5, 1, 4]),
                priority=chance.choice([0, 0, 0, 1]), source=source, n=n, options=options, patches=patches,
                full=Overflow(chance.choice(overflows), chance.randint(-1, 5)), pooling=pooling,
                extra=source.tobytes() + repr(options).encode(),
            )  # fmt: skip
            most = chance.randint(1, 12)
            for _ in range(request.n):
                sequence = Sequence(request, len(made))
                runner.max_tokens[sequence] = most
                scheduler.add(sequence)
                made.append((sequence, ids, most))
        if scheduler.running and chance.random() < 0.03:
            scheduler.remove(chance.choice(scheduler.running))
        if scheduler.waiting and chance.random() < 0.03:
            scheduler.remove(chance.choice(scheduler.waiting))
        for one in scheduler.running if drafts else ():
            one.draft = draft_of(one, chance)
        plan = scheduler.schedule(chance.randint(1, MOST_IDS))
        if plan is not None:
            going_on = [*scheduler.running, *scheduler.waiting]
            before = len(runner.finished), sum(len(one.ids) + one.n_computed for one in going_on)
            runner.run_or_fail(plan, failures)
            after = len(runner.finished), sum(len(one.ids) + one.n_computed for one in going_on)
            quiet = 0 if before < after else quiet + 1
        runner.check()
        assert quiet < 50
    finished = set(runner.finished)
    for sequence, ids, most in made:
        assert sequence.status is Status.FINISHED
        wanted = ids if sequence.request.pooling else alone(ids, most, n_ctx, sequence.request.full)
        if sequence in finished:
            assert sequence.ids == wanted
        elif not sequence.request.full.shifts:
            assert sequence.ids == wanted[: len(sequence.ids)]
    assert pool.n_used == scheduler.sources.n_used == 0
    assert not scheduler._queues.order
    return runner


def scheduler_of(n_blocks: int, max_sequences: int = 4, n_ctx: int = 0, **more: int) -> Scheduler:
    return Scheduler(BlockPool(n_blocks, SIZE), max_sequences, n_ctx or n_blocks * SIZE, **more)


def sequence_of(n_ids: int, order: int = 0, first: int = 0, **more: object) -> Sequence:
    request = Request(np.arange(first, first + n_ids, dtype=np.int32), **more)  # type: ignore[arg-type]
    return Sequence(request, order)


def run(scheduler: Scheduler, budget: int = 100) -> StepPlan:
    plan = scheduler.schedule(budget)
    assert plan is not None
    scheduler.computed(plan)
    for rows in plan.rows:
        if rows.n_outputs:
            rows.sequence.ids.append(0)
    return plan
