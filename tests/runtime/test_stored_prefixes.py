"""Blocks that move between a pool and a store: whatever the store does, every request gets its own tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.runtime.block_pool import BlockPool, Content
from graphml.runtime.block_store import BlockStore, Rows
from graphml.runtime.request import Request
from graphml.runtime.scheduler import Scheduler
from graphml.runtime.sequence import Sequence as RunningSequence
from graphml.runtime.sequence import Status
from graphml.runtime.stored_prefixes import StoredPrefixes
from tests.runtime.made_up_runner import SIZE, Runner, alone


class Cells:
    """The cells of a made-up runner. calls_left: after so many calls they raise."""

    def __init__(self, runner: Runner, calls_left: int) -> None:
        self.runner, self.calls_left = runner, calls_left

    def _call(self) -> None:
        self.calls_left -= 1
        if not self.calls_left:
            raise RuntimeError("the device is gone")

    def read_blocks(self, blocks: Sequence[int]) -> list[dict[str, Any]]:
        self._call()
        return [{"k": np.array(self.runner.cells[b * SIZE : (b + 1) * SIZE])} for b in blocks]

    def write_block(self, block: int, rows: Mapping[str, Any]) -> None:
        self._call()
        self.runner.cells[block * SIZE : (block + 1) * SIZE] = rows["k"].tolist()


class Store:
    """A store in memory, which reads late, and forgets some blocks, when it is asked to."""

    n_blocks = 8

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.held: dict[bytes, tuple[Content, Rows]] = {}
        self.reads: list[tuple[Sequence[Content], Callable[[list[Rows]], None]]] = []
        self.n_read = self.n_used = 0

    def has(self, content: Content) -> bool:
        return content.prefix.digest in self.held

    def wants(self, content: Content) -> bool:
        return not self.has(content) or self.chance.random() < 0.3

    def used(self, content: Content) -> None:
        self.n_used += 1

    def read(self, contents: Sequence[Content], arrived: Callable[[list[Rows]], None]) -> None:
        self.reads.append((contents, arrived))

    def write(self, content: Content, rows: Rows, wait: bool = False) -> None:
        if wait or self.chance.random() < 0.8:
            self.held[content.prefix.digest] = content, {name: array.copy() for name, array in rows.items()}

    def close(self) -> None:
        self.reads = []

    def answer(self) -> None:
        """Read what was asked for, as `BlockFiles.read` checks it."""
        while self.reads:
            contents, arrived = self.reads.pop()
            found = []
            for wanted in contents:
                content, rows = self.held.get(wanted.prefix.digest, (None, {}))
                if content is None or self.chance.random() < 0.05:
                    break
                if (content.tokens, content.parent.lineage) != (wanted.tokens, wanted.parent.lineage):
                    break
                found.append(rows)
            self.n_read += len(found)
            arrived(found)


def play(seed: int, constant_hash: bool = False, calls_left: int = 0, n_requests: int = 60) -> Store:
    chance = random.Random(seed)
    n_blocks = chance.randint(4, 14)
    n_ctx = chance.randint(2 * SIZE, n_blocks * SIZE)
    hash_block = {"hash_block": lambda parent, tokens: b""} if constant_hash else {}
    pool = BlockPool(n_blocks, SIZE, **hash_block)
    scheduler = Scheduler(pool, chance.randint(1, 4), n_ctx, prompt_cap=chance.randint(1, 12))
    runner, store = Runner(scheduler), Store(chance)
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
            sequence = RunningSequence(Request(np.array(ids, np.int32)), len(made))
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
        assert quiet < 60
    for sequence, ids, most in made:
        assert sequence.status is Status.FINISHED
        assert sequence.ids == alone(ids, most, n_ctx)[: len(sequence.ids)]
    assert len(runner.finished) > len(made) / 2
    prefixes.close()
    assert pool.n_used == 0
    return store


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_every_request_gets_its_tokens_whatever_the_store_does(seed: int, constant_hash: bool) -> None:
    play(seed, constant_hash)


def test_blocks_are_found_again_after_they_were_evicted() -> None:
    assert sum(play(seed).n_read for seed in range(5)) > 50


def test_a_store_whose_cells_fail_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    for calls_left in range(1, 12):
        caplog.clear()
        play(3, calls_left=calls_left)
        assert [one.message for one in caplog.records] == [
            "store: blocks cannot be copied; the engine goes on without it"
        ]
