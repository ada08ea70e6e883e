"""Parts that move between pools and a store: whatever the store does, every request gets its own tokens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.ir.cell_groups import CellGroup
from graphml.runtime.blocks.block_content import ContentPart
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.runtime.blocks.sequence import Status
from graphml.runtime.blocks.window_blocks import WindowBlocks, WindowRoom
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.store.block_store import BlockStore, Rows
from graphml.runtime.store.stored_prefixes import StoredPrefixes
from tests.runtime.made_up_runner import MOST_IDS, SIZE, Runner, alone


class Cells:
    """The cells, states and texts of a made-up runner. calls_left: after so many calls they raise."""

    def __init__(self, runner: Runner, calls_left: int) -> None:
        self.runner, self.calls_left = runner, calls_left
        self.windows = {window.group.name: i for i, window in enumerate(runner.pool.windows)}

    def _call(self) -> None:
        self.calls_left -= 1
        if not self.calls_left:
            raise RuntimeError("the device is gone")

    def _cells(self, kind: str) -> list[int]:
        return self.runner.of_windows[self.windows[kind]] if kind in self.windows else self.runner.cells

    def read(self, kind: str, numbers: list[int]) -> list[dict[str, Any]]:
        self._call()
        runner = self.runner
        if kind == "states":
            return [{"s": runner.copies[at]} for at in numbers]
        if kind == "source":
            return [{"x": [runner.sources.get(b * SIZE + i) for i in range(SIZE)]} for b in numbers]
        return [{"k": self._cells(kind)[b * SIZE : (b + 1) * SIZE]} for b in numbers]

    def write(self, kind: str, number: int, rows: Mapping[str, Any]) -> None:
        self._call()
        if kind == "states":
            self.runner.copies[number] = rows["s"]
        elif kind == "source":
            texts = zip(range(number * SIZE, (number + 1) * SIZE), rows["x"], strict=True)
            self.runner.sources |= {cell: one for cell, one in texts if one is not None}
        else:
            self._cells(kind)[number * SIZE : (number + 1) * SIZE] = rows["k"]


class Store:
    """A store in memory, which reads late, and forgets some parts, when it is asked to."""

    max_bytes = 30

    def __init__(self, chance: random.Random, kind: str) -> None:
        self.chance, self.kind = chance, kind
        self.held: dict[tuple[str, bytes], tuple[ContentPart, Rows]] = {}
        self.reads: list[tuple[Sequence[ContentPart], Callable[[list[Rows]], None]]] = []
        self.n_used = 0
        self.n_read: Counter[str] = Counter()

    def stores(self, kind: str) -> bool:
        return kind != "" or self.kind != "recurrent"

    def part_bytes(self, kind: str) -> int:
        return int(self.stores(kind))

    def has(self, part: ContentPart) -> bool:
        return (part.kind, part.content.prefix.digest) in self.held

    def wants(self, part: ContentPart) -> bool:
        return self.stores(part.kind) and (not self.has(part) or self.chance.random() < 0.3)

    def used(self, part: ContentPart) -> None:
        self.n_used += 1

    def read(self, parts: Sequence[ContentPart], arrived: Callable[[list[Rows]], None]) -> None:
        self.reads.append((parts, arrived))

    def write(self, part: ContentPart, rows: Rows, wait: bool = False) -> None:
        if wait or self.chance.random() < 0.8:
            self.held[part.kind, part.content.prefix.digest] = part, dict(rows)

    def close(self) -> None:
        self.reads = []

    def answer(self) -> None:
        """Read what was asked for, as `BlockFiles.read` checks it."""
        while self.reads:
            parts, arrived = self.reads.pop()
            found = []
            for wanted in parts:
                part, rows = self.held.get((wanted.kind, wanted.content.prefix.digest), (None, {}))
                if part is None or self.chance.random() < 0.05:
                    break
                one, other = part.content, wanted.content
                if (one.tokens, one.parent.lineage) != (other.tokens, other.parent.lineage):
                    break
                found.append(rows)
                self.n_read[wanted.kind] += 1
            arrived(found)


def play(
    seed: int, constant_hash: bool = False, calls_left: int = 0, n_requests: int = 60, kind: str = "attention"
) -> Store:
    chance = random.Random(seed)
    n_blocks = chance.randint(4, 14)
    n_ctx = chance.randint(2 * SIZE, n_blocks * SIZE)
    hash_block = {"hash_block": lambda parent, tokens: b""} if constant_hash else {}
    most = chance.randint(1, 4)
    groups = [CellGroup(5), CellGroup(chunk=6)] if kind == "windows" else []
    rooms = [WindowRoom(group, chance.randint(1, most), n_ctx, MOST_IDS, SIZE) for group in groups]
    pool = BlockPool(n_blocks, SIZE, **hash_block, windows=[WindowBlocks(room, n_blocks) for room in rooms])
    recurrent = kind in ("hybrid", "recurrent")
    checkpoints = Checkpoints(chance.randint(1, 5), SIZE, kind == "hybrid", 2 * SIZE) if recurrent else None
    cap = chance.randint(1, 12)
    scheduler = Scheduler(pool, most, n_ctx, cap, recurrent=recurrent, checkpoints=checkpoints)
    runner, store = Runner(scheduler), Store(chance, kind)
    woken: list[None] = []
    prefixes = StoredPrefixes(
        scheduler, Cells(runner, calls_left), cast(BlockStore, store), lambda: woken.append(None)
    )
    beginnings = [[chance.randint(0, 1) for _ in range(6 * SIZE)] for _ in range(4)]
    made: list[tuple[RunningSequence, list[int], int]] = []
    quiet = 0
    while len(made) < n_requests or scheduler:
        if len(made) < n_requests and (chance.random() < 0.4 or not scheduler):
            start = chance.choice(beginnings)[: chance.randint(0, 6 * SIZE)]
            ids = (start + [chance.randint(0, 1) for _ in range(chance.randint(1, 5))])[: n_ctx - 1]
            text = chance.choice(beginnings)[: chance.randint(1, min(n_ctx, MOST_IDS))]
            source = np.array(text if kind == "encodes" else [], np.int32)
            request = Request(np.array(ids, np.int32), extra=source.tobytes(), source=source)
            sequence = RunningSequence(request, len(made))
            runner.max_tokens[sequence] = chance.randint(1, 8)
            scheduler.add(sequence)
            made.append((sequence, ids, runner.max_tokens[sequence]))
        if chance.random() < 0.03 and scheduler.waiting:
            scheduler.remove(chance.choice(scheduler.waiting))
        if chance.random() < 0.5 or not scheduler.running:
            store.answer()
        prefixes.load()
        plan = scheduler.schedule(chance.randint(1, 16))
        prefixes.save()
        if plan is not None:
            runner.run(plan)
        runner.check()
        quiet = 0 if plan is not None and plan.rows else quiet + 1
        assert quiet < 80
    for sequence, ids, most in made:
        assert sequence.status is Status.FINISHED
        assert sequence.ids == alone(ids, most, n_ctx)[: len(sequence.ids)]
    assert len(runner.finished) > len(made) / 2
    prefixes.close()
    assert pool.n_used == scheduler.sources.n_used == 0
    return store


STORED = {"attention": {""}, "windows": {"", "window_5", "chunk_6"}, "hybrid": {"", "states"},
          "recurrent": {"states"}, "encodes": {"", "source"}}  # fmt: skip
"""The kinds of parts of each kind of model."""


@pytest.mark.parametrize("kind", STORED)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_every_request_gets_its_tokens_whatever_the_store_does(
    kind: str, seed: int, constant_hash: bool
) -> None:
    play(seed, constant_hash, kind=kind)


@pytest.mark.parametrize("kind", STORED)
def test_parts_are_found_again_after_they_were_evicted(kind: str) -> None:
    found = sum((play(seed, kind=kind).n_read for seed in range(8)), Counter[str]())
    assert set(found) == STORED[kind]
    assert min(found.values()) > 10


@pytest.mark.parametrize("kind", STORED)
def test_a_store_whose_cells_fail_is_given_up(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    for calls_left in range(1, 12):
        caplog.clear()
        play(3, calls_left=calls_left, kind=kind)
        assert [one.message for one in caplog.records] == [
            "store: blocks cannot be copied; the engine goes on without it"
        ]
