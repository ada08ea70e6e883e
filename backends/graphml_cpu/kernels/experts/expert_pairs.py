"""Which (token, slot) pairs chose which expert: a list sorted by expert, and its shares for the threads.

Pairs of an expert that there is not stand behind all others, as those of number n_experts: `ends` has one
more than there are experts. Each thread sorts for itself, so that nobody waits. Knows numbers and addresses;
nothing of weights.
"""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.simd import load_i32, store_i32


@inline
def expert_of(ids: int, pair: int, n_experts: int) -> int:
    """The expert of a pair; n_experts for one that there is not."""
    expert = load_i32(ids + pair * 4)
    if expert < 0 or expert > n_experts:
        expert = n_experts
    return expert


@inline
def find_begins(ids: int, pairs: int, n_experts: int, ends: int) -> None:
    """`ends` int32 [n_experts + 1]: where each expert's pairs begin in the sorted list."""
    for expert in range(n_experts + 1):
        store_i32(ends + expert * 4, 0)
    for pair in range(pairs):
        at = ends + expert_of(ids, pair, n_experts) * 4
        store_i32(at, load_i32(at) + 1)
    begin = 0
    for expert in range(n_experts + 1):
        count = load_i32(ends + expert * 4)
        store_i32(ends + expert * 4, begin)
        begin += count


@inline
def next_place(ids: int, pair: int, n_experts: int, ends: int) -> int:
    """The place of the next pair in the sorted list; when all were asked for, `ends` are the ends."""
    at = ends + expert_of(ids, pair, n_experts) * 4
    place = load_i32(at)
    store_i32(at, place + 1)
    return place
