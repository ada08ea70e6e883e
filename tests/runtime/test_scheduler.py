"""The scheduler without a model: a runner that knows every id of every block, and random requests."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.ir.cell_groups import CellGroup
from graphml.runtime.block_pool import BlockPool
from graphml.runtime.checkpoints import Checkpoints
from graphml.runtime.overflow import Overflow, n_dropped
from graphml.runtime.request import Request
from graphml.runtime.scheduler import Scheduler
from graphml.runtime.sequence import Sequence, Status
from graphml.runtime.step_plan import Rows, StepPlan
from graphml.runtime.window_blocks import WindowBlocks, WindowRoom

SIZE = 4
MOST_IDS = 16  # of a step
KINDS = ["attention", "hybrid", "recurrent", "encodes"]
"""What a sequence has: cells; cells and states; states; cells and a source text."""
STOPS = Overflow()


def next_id(ids: list[int]) -> int:
    """What the made-up model continues ids with: it depends on all of them."""
    return (sum((i + 1) * one for i, one in enumerate(ids)) * 31 + len(ids)) % 97


def key_of(ids: list[int], position: int) -> int:
    """What a cell holds: as keys and values do, it depends on all ids up to its own."""
    return hash(tuple(ids[: position + 1]))


class Runner:
    """Computes plans on cells and states that it keeps itself, and checks that what a row sees is its own.

    A state is all ids that changed it since position 0; copies of states are those of a recurrent model.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.pool = scheduler, scheduler.pool
        self.checkpoints = scheduler._checkpoints
        self.with_cells = self.checkpoints is None or self.checkpoints._with_cells
        self.sources: dict[int, tuple[bytes, int]] = {}  # by cell
        self.states: dict[int, tuple[int, ...]] = {}  # by slot
        self.copies: dict[int, tuple[int, ...]] = {}
        self.cells = [0] * (self.pool.n_blocks * SIZE)
        self.of_windows = [[0] * (window.n_blocks * SIZE) for window in self.pool.windows]
        self.max_tokens: dict[Sequence, int] = {}
        self.finished: list[Sequence] = []
        self.n_steps = self.n_sources = 0
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
                assert self.expected[one] != [key_of(one.ids, p) for p in range(rows.start)]

    def keys(self, one: Sequence) -> list[int]:
        """What its cells have to hold: as it was computed, of ids that it may have forgotten since."""
        found = self.expected.setdefault(one, [])
        if not one.moved:
            found[:] = [key_of(one.ids, p) for p in range(one.n_computed)]
        else:
            found += [key_of(one.ids, p) for p in range(len(found), one.n_computed)]
        return found

    def run(self, plan: StepPlan) -> None:
        self.n_steps += 1
        writes: Counter[int] = Counter()
        for rows in plan.rows:
            if rows.restore is not None:
                self.states[rows.sequence.slot] = self.copies[rows.restore]
        self.read_sources(plan)
        for rows in plan.rows:
            self.move(rows)
        for rows in plan.rows:
            one = rows.sequence
            if self.checkpoints is not None:
                self.advance_state(rows)
            source = one.request.source
            for i, cell in enumerate(source_cells(one)):
                assert self.sources[cell] == (source.tobytes(), i)
            assert one.status is Status.RUNNING
            assert rows.start == one.n_computed
            assert 0 < rows.count <= one.n_behind
            for position in range(rows.start, rows.start + rows.count):
                cell = one.blocks[position // SIZE] * SIZE + position % SIZE
                writes[cell] += 1
                self.cells[cell] = key_of(one.ids, position)
        assert not writes or max(writes.values()) == 1  # no cell belongs to two
        self.check_windows(plan)
        self.keep(plan)
        self.scheduler.computed(plan)
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
        for rows, (window, cells) in itertools.product(
            plan.rows, zip(self.pool.windows, self.of_windows, strict=True)
        ):
            for position in range(rows.start, rows.start + rows.count):
                cells[self.windowed(window, rows.sequence, position)] = key_of(rows.sequence.ids, position)
        for rows, (window, cells) in itertools.product(
            plan.rows, zip(self.pool.windows, self.of_windows, strict=True)
        ):
            one, group = rows.sequence, window.group
            for position in range(rows.start, rows.start + rows.count):
                for seen in range(group.first_seen(position), position + 1):
                    assert cells[self.windowed(window, one, seen)] == key_of(one.ids, seen)

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
        before = self.states.get(one.slot, ()) if rows.start else ()
        assert before == tuple(one.ids[: rows.start])
        self.states[one.slot] = tuple(one.ids[: rows.start + rows.count])

    def check(self) -> None:
        """Blocks are held by running sequences alone, each as often as it is in their tables."""
        held: Counter[int] = Counter()
        for one in self.scheduler.running:
            assert len(one.blocks) * SIZE >= one.n_computed
            held.update(one.blocks)
        assert [held[block] for block in range(self.pool.n_blocks)] == self.pool._references
        assert self.pool.n_free == self.pool.n_blocks - len(held)
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
        pool = self.scheduler._sources._pool
        assert [sources[block] for block in range(pool.n_blocks)] == pool._references
        for one in self.scheduler.waiting:
            assert not one.blocks
            assert not one.source_blocks
            assert one.slot == -1
        if self.checkpoints is not None:
            used = [one.at for one in self.checkpoints._kept]
            assert sorted([*used, *self.checkpoints._free]) == list(range(self.checkpoints.count))
            for checkpoint in self.checkpoints._kept:
                ids = np.array(self.copies[checkpoint.at], np.int32)
                assert (len(ids), ids.tobytes()) == (checkpoint.n, checkpoint.ids)


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


def play(
    seed: int,
    n_requests: int,
    constant_hash: bool = False,
    keep: bool = True,
    kind: str = "attention",
    groups: Iterable[CellGroup] = (),
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
    scheduler = Scheduler(pool, max_sequences, n_ctx, cap, kind in ("hybrid", "recurrent"), checkpoints)
    overflows = ["stop", "shift"] if kind == "attention" and not windows else ["stop"]
    runner = Runner(scheduler)
    beginnings = [[chance.randint(0, 2) for _ in range(3 * SIZE)] for _ in range(3)]
    made: list[tuple[Sequence, list[int], int]] = []
    quiet = 0
    while len(made) < n_requests or scheduler:
        if len(made) < n_requests and (chance.random() < 0.5 or not scheduler):
            start = chance.choice(beginnings)[: chance.randint(0, 3 * SIZE)]
            ids = (start + [chance.randint(0, 2) for _ in range(chance.randint(1, 9))])[: n_ctx - 1]
            size = chance.randint(1, min(MOST_IDS, n_ctx)) if kind == "encodes" else 0
            source = np.full(size, chance.randint(0, 1), np.int32)
            request = Request(
                np.array(ids, np.int32), key=chance.choice("abc"), weight=chance.choice([0.5, 1, 4]),
                priority=chance.choice([0, 0, 0, 1]), extra=source.tobytes(), source=source,
                n=chance.choice([1, 1, 2, 5]), full=Overflow(chance.choice(overflows), chance.randint(-1, 5)),
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
        plan = scheduler.schedule(chance.randint(1, MOST_IDS))
        if plan is not None:
            before = len(runner.finished), sum(len(one.ids) + one.n_computed for one, _, _ in made)
            runner.run(plan)
            after = len(runner.finished), sum(len(one.ids) + one.n_computed for one, _, _ in made)
            quiet = 0 if before < after else quiet + 1
        runner.check()
        assert quiet < 50
    finished = set(runner.finished)
    for sequence, ids, most in made:
        assert sequence.status is Status.FINISHED
        wanted = alone(ids, most, n_ctx, sequence.request.full)
        if sequence in finished:
            assert sequence.ids == wanted
        elif not sequence.request.full.shifts:
            assert sequence.ids == wanted[: len(sequence.ids)]
    assert pool.n_used == scheduler._sources.n_used == 0
    assert not scheduler._served
    return runner


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_request_ends_with_what_it_gives_alone(kind: str, seed: int) -> None:
    play(seed, 40, kind=kind)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**9),
    st.lists(
        st.builds(CellGroup, window=st.integers(1, 20)) | st.builds(CellGroup, chunk=st.integers(1, 20)),
        min_size=1, max_size=2, unique=True,
    ),
)  # fmt: skip
def test_windows_hold_what_rows_see(seed: int, groups: list[CellGroup]) -> None:
    """In pools for as few sequences as one; what comes out is the same."""
    play(seed, 40, groups=groups)


def window_scheduler(n_blocks: int = 64, n_sequences: int = 4) -> tuple[Scheduler, WindowBlocks]:
    room = WindowRoom(CellGroup(window=2 * SIZE), n_sequences, n_blocks * SIZE, 8, SIZE)
    window = WindowBlocks(room, n_blocks)
    return Scheduler(BlockPool(n_blocks, SIZE, windows=[window]), 4, n_blocks * SIZE), window


def test_a_window_holds_no_more_blocks_than_it_sees() -> None:
    scheduler, window = window_scheduler()
    long = sequence_of(120)
    scheduler.add(long)
    while long.n_behind:
        run(scheduler, budget=8)
        assert window.n_blocks - window.n_free <= 3
        if long.n_generated:
            break
    assert len(long.blocks) == 30


def test_a_prefix_is_found_where_its_last_window_is() -> None:
    """And not where others have taken that; computed once more, it is found again."""
    scheduler, _ = window_scheduler(128)
    found = []

    def ended(sequence: Sequence) -> None:
        scheduler.add(sequence)
        while not sequence.n_generated:
            run(scheduler, budget=8)
        found.append(sequence.n_cached)
        scheduler.remove(sequence)

    ended(sequence_of(60))
    ended(sequence_of(62, 1))
    assert found == [0, 60]
    ended(sequence_of(200, 2, first=1000))  # takes every block of windows
    ended(sequence_of(62, 3))
    ended(sequence_of(62, 4))
    assert found[2:] == [0, 0, 60]


def test_as_many_sequences_run_as_windows_have_room_for() -> None:
    scheduler, _ = window_scheduler(n_sequences=2)
    for i in range(4):
        scheduler.add(sequence_of(20, i, first=100 * i))
    for _ in range(10):
        run(scheduler, budget=8)
        assert len(scheduler.running) <= 2
    assert len(scheduler.running) == 2


@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_steps(part: int) -> None:
    """A quarter of them each: small pools and large ones, with few requests and with many."""
    chance, n_steps = random.Random(part), 0
    while n_steps < 25_000:
        n_requests, kind = chance.choice([10, 40, 200]), chance.choice(KINDS)
        n_steps += play(chance.randrange(10**9), n_requests, kind=kind).n_steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constant_hash", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_neither_the_hash_nor_the_prefix_cache_changes_what_comes_out(
    constant_hash: bool, keep: bool, kind: str
) -> None:
    for seed in range(10):
        play(seed, 40, constant_hash, keep, kind)


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


def test_a_long_prompt_leaves_the_others_their_rows() -> None:
    scheduler = scheduler_of(64, prompt_cap=8)
    short, long = sequence_of(3), sequence_of(100, 1, first=50)
    scheduler.add(short)
    run(scheduler)
    scheduler.add(long)
    plans = [run(scheduler, budget=20) for _ in range(5)]
    assert [[rows.count for rows in plan.rows] for plan in plans] == [[1, 8]] * 5
    assert [[rows.n_outputs for rows in plan.rows] for plan in plans] == [[1, 0]] * 5


def full_sequence(scheduler: Scheduler, keep: int) -> Sequence:
    """A sequence that is one id short of a full context, alone."""
    sequence = sequence_of(scheduler.n_ctx - 1, full=Overflow("shift", keep))
    scheduler.add(sequence)
    run(scheduler)
    return sequence


def test_a_full_context_moves_cells_within_its_own_blocks() -> None:
    scheduler = scheduler_of(4)
    sequence = full_sequence(scheduler, keep=3)
    ids, blocks = list(sequence.ids), list(sequence.blocks)
    (rows,) = run(scheduler).rows
    assert sequence.ids[:-1] == ids[:3] + ids[9:]
    assert sequence.blocks == blocks[:3]  # ten ids
    (move,) = rows.moves
    cells = [block * SIZE + i for block in blocks for i in range(SIZE)]
    assert move.sources.tolist() == cells[9:15]
    assert (move.targets.tolist(), move.difference) == (cells[3:9], -6)


def test_moved_blocks_are_found_by_nobody() -> None:
    scheduler = scheduler_of(16, n_ctx=16)
    sequence = full_sequence(scheduler, keep=5)
    first = list(sequence.ids)
    while sequence.n_dropped == 0 or len(sequence.ids) < 16:
        run(scheduler)
    scheduler.remove(sequence)
    for ids, found in ((first, 1), (sequence.ids, 1), (first[:12] + sequence.ids[12:], 1)):
        blocks, _ = scheduler.pool.match(np.array(ids, np.int32), sequence.prefix)
        assert len(blocks) == found  # the first alone is as it was computed


def test_a_shift_leaves_shared_blocks_to_the_others() -> None:
    scheduler = scheduler_of(16, n_ctx=16)
    sequence = sequence_of(13, full=Overflow("shift", 2))
    other = Sequence(sequence.request, 1)
    for one in (sequence, other):
        scheduler.add(one)
        run(scheduler)
    before = list(other.blocks)
    while not sequence.n_dropped:
        rows = run(scheduler).rows
    assert other.blocks[:3] == before[:3]
    assert not set(other.blocks) & set(sequence.blocks)
    copied, moved = rows[0].moves
    assert (len(copied.sources), copied.difference, moved.difference) == (2, 0, -7)


def siblings_of(scheduler: Scheduler, n_ids: int, n: int) -> list[Sequence]:
    request = Request(np.arange(n_ids, dtype=np.int32), n=n)
    made = [Sequence(request, index, index) for index in range(n)]
    for one in made:
        scheduler.add(one)
    return made


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("n_ids", [3, 8, 22])
def test_the_prompt_of_several_continuations_is_computed_once(n_ids: int, keep: bool) -> None:
    scheduler = Scheduler(BlockPool(64, SIZE, keep), 4, 64 * SIZE)
    siblings = siblings_of(scheduler, n_ids, 4)
    first, second = run(scheduler), run(scheduler)
    assert [rows.count for rows in first.rows] == [n_ids - 1]
    assert [(rows.start, rows.count) for rows in second.rows] == [(n_ids - 1, 1)] * 4
    own = {one.blocks[-1] for one in siblings}
    assert len(own) == 4
    assert len({tuple(one.blocks[:-1]) for one in siblings}) == 1
    partly = (n_ids - 1) % SIZE
    assert [[len(move.sources) for move in rows.moves] for rows in second.rows[1:]] == [
        [partly] if partly else []
    ] * 3


def test_a_recurrent_sequence_forks_from_the_states_before_the_last_id() -> None:
    scheduler = Scheduler(BlockPool(64, SIZE, False), 3, 64 * SIZE, recurrent=True)
    siblings = siblings_of(scheduler, 10, 4)
    run(scheduler)
    rows = run(scheduler).rows
    assert [one.states_of for one in rows] == [None, siblings[0].slot, siblings[0].slot]
    scheduler.remove(siblings[1])  # the fourth has its slot now, and the others' states have seen more
    rows = run(scheduler).rows
    assert [(one.start, one.states_of) for one in rows if one.sequence is siblings[3]] == [(0, None)]


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    scheduler = scheduler_of(64)
    prompts = [sequence_of(22, i) for i in range(3)]
    for sequence in prompts:
        scheduler.add(sequence)
    assert [rows.sequence for rows in run(scheduler, budget=12).rows] == prompts[:1]
    assert [rows.sequence for rows in run(scheduler).rows] == prompts[:1]
    assert [rows.count for rows in run(scheduler).rows] == [1, 2, 2]
    assert scheduler.pool.n_shared == 5


def test_a_prompt_alone_takes_the_whole_step() -> None:
    scheduler = scheduler_of(64, prompt_cap=8)
    scheduler.add(sequence_of(100))
    assert [run(scheduler, budget=64).rows[0].count for _ in range(2)] == [64, 36]


def test_a_prompt_that_was_computed_before_costs_its_rest() -> None:
    scheduler = scheduler_of(64)
    first, second = sequence_of(18), sequence_of(18, 1)
    scheduler.add(first)
    run(scheduler)
    scheduler.remove(first)
    scheduler.add(second)
    (rows,) = run(scheduler).rows
    assert (second.n_cached, rows.start, rows.count) == (16, 16, 2)


def test_a_whole_prompt_that_was_computed_computes_its_last_id() -> None:
    scheduler = scheduler_of(64)
    first, second = sequence_of(16), sequence_of(16, 1)
    scheduler.add(first)
    run(scheduler)
    scheduler.add(second)
    rows = run(scheduler).rows[-1]
    assert (second.n_cached, rows.start, rows.count, rows.n_outputs) == (12, 12, 4, 1)


def test_prefixes_of_different_keys_of_content_are_not_shared() -> None:
    scheduler = scheduler_of(64)
    first, second = sequence_of(16, extra=b"a"), sequence_of(16, 1, extra=b"b")
    for sequence in (first, second):
        scheduler.add(sequence)
        run(scheduler)
    assert second.n_cached == 0
    assert scheduler.pool.n_shared == 0


def test_the_newest_gives_way_and_comes_back() -> None:
    scheduler = scheduler_of(6, n_ctx=20)
    old, new = sequence_of(8), sequence_of(8, 1, first=50)
    scheduler.add(old)
    scheduler.add(new)
    preempted: list[Sequence] = []
    while old.status is not Status.FINISHED:
        plan = run(scheduler)
        preempted += plan.preempted
        if len(old.ids) >= 20:
            scheduler.remove(old)
    assert preempted == [new]
    assert run(scheduler).rows[0].sequence is new
    assert new.n_preempted == 1


def test_a_larger_priority_goes_first() -> None:
    scheduler = scheduler_of(64, max_sequences=1)
    low, high = sequence_of(4), sequence_of(4, 1, first=9, priority=1)
    scheduler.add(low)
    scheduler.add(high)
    assert run(scheduler).rows[0].sequence is high


def test_a_larger_priority_keeps_its_blocks() -> None:
    """Smaller ones that generate give theirs to its prompt."""
    scheduler = scheduler_of(10)
    for order in range(3):
        scheduler.add(sequence_of(8, order, first=50 * order))
    for _ in range(3):
        run(scheduler)
    high = sequence_of(20, 9, first=900, priority=5)
    scheduler.add(high)
    while not high.n_generated:
        run(scheduler)
        for one in [*scheduler.running, *scheduler.waiting]:
            if len(one.ids) >= 36:
                scheduler.remove(one)
    assert high.n_preempted == 0


def test_keys_share_prompts_by_their_weights() -> None:
    """One key asks for a hundred prompts at once, another then for a few, with twice the weight."""
    scheduler = scheduler_of(400, max_sequences=1)
    many = [sequence_of(8, i, first=1000 * i, key="many") for i in range(40)]
    few = [sequence_of(8, 100 + i, first=7 + 1000 * i, key="few", weight=2.0) for i in range(10)]
    for sequence in (*many, *few):
        scheduler.add(sequence)
    served = []
    for _ in range(15):
        one = run(scheduler).rows[0].sequence
        served.append(one.request.key)
        scheduler.remove(one)
    assert Counter(served) == {"few": 10, "many": 5}


def test_what_could_never_fit_is_refused_when_it_comes() -> None:
    scheduler = scheduler_of(4)
    for n_ids in (0, 16, 17):
        with pytest.raises(UsageError, match=rf"wanted 1 to 15 ids.*got {n_ids}$"):
            scheduler.add(sequence_of(n_ids))
    assert not scheduler
    with pytest.raises(UsageError, match=r"wanted room for a sequence of 17 tokens; the pool holds 16"):
        scheduler_of(4, n_ctx=17)


def test_deadlines_are_told() -> None:
    scheduler = scheduler_of(8)
    soon, late, never = sequence_of(4, deadline=1.0), sequence_of(4, 1, deadline=9.0), sequence_of(4, 2)
    for sequence in (soon, late, never):
        scheduler.add(sequence)
    assert scheduler.expired(0.5) == []
    assert scheduler.expired(1.0) == [soon]


def with_source(text: list[int], order: int) -> Sequence:
    source = np.array(text, np.int32)
    return sequence_of(1, order, extra=source.tobytes(), source=source)


def test_a_source_is_read_in_the_step_that_its_sequence_begins_in() -> None:
    """The first takes as many rows as it needs, further ones what is left; equal ones are read once."""
    scheduler = scheduler_of(8, max_sequences=8)
    texts = [list(range(12)), list(range(6)), list(range(12)), [5]]
    first, second, same, short = (with_source(text, order) for order, text in enumerate(texts))
    for one in (first, second, same, short):
        scheduler.add(one)
    plans = [run(scheduler, budget=10) for _ in range(2)]
    assert [plan.sources for plan in plans] == [(first,), (second, short)]
    assert [one.sequence for one in plans[0].rows] == [first]
    assert same.source_blocks == first.source_blocks
    scheduler.remove(first)
    assert scheduler._sources.n_used == 3 + 2 + 1
    for one in (second, same, short):
        scheduler.remove(one)
    assert scheduler._sources.n_used == 0


def test_a_source_waits_for_blocks() -> None:
    scheduler = scheduler_of(8)
    first, second = (with_source(list(range(at, at + 20)), at) for at in (0, 1))
    for one in (first, second):
        scheduler.add(one)
    assert run(scheduler).sources == (first,)
    assert run(scheduler).sources == ()
    scheduler.remove(first)
    assert run(scheduler).sources == (second,)
