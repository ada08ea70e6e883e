"""How many threads share a step, and in how many parts, by its cost."""

from __future__ import annotations

import pytest
from graphml_cpu.runtime.shares import ALL_SHARE, JOINING, PARTS, Shares, members, shares

from tests.looped import looped


@pytest.mark.parametrize("n_threads", [1, 2, ALL_SHARE])
def test_few_threads_share_every_step(n_threads: int) -> None:
    assert shares([None, 1.0, 1e9], n_threads) == [Shares(n_threads, PARTS)] * 3


@looped("n_threads", [9, 16, 64, 200])
def test_as_many_threads_as_shorten_a_step(n_threads: int) -> None:
    def seconds(cost: float, m: int) -> float:
        return cost / m + m * JOINING

    for cost in (0.0, 10.0, 1e3, 2e4, 1.2e5, 1e6, 1e9):
        found = members(cost, n_threads)
        assert 1 <= found <= n_threads
        best = min(seconds(cost, m) for m in range(1, n_threads + 1))
        assert seconds(cost, found) <= 1.02 * best + JOINING
    assert members(1e9, n_threads) == n_threads
    assert members(0.0, n_threads) == 1


def test_steps_between_two_barriers_share_its_threads() -> None:
    """What costs little has fewer owners than what stands beside it, and nothing has parts of nothing."""
    large, small, own = shares([3e6, 1500.0, None], 64)
    assert large == Shares(64, PARTS)
    assert small == Shares(5, 1)
    assert own == Shares(1, 1)
    alone = shares([1500.0], 64)[0]
    assert alone == Shares(2, 2)  # a third thread would take longer to join than its part takes


def test_shares_are_one_number() -> None:
    assert Shares(64, 4).packed == (64 << 16) + 4
    assert Shares(64, 0).packed == 0
