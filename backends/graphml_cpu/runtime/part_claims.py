"""The compiled functions by which the threads of a team share the parts of a step.

A step has owners, the first threads of the team, and each owner has so many parts. A thread takes its own
parts first, then those that others have not come to. A thread that is done knows that all parts are taken.
Knows the claim lines of `runtime.sync`; nothing of barriers or kernels. Imports the front end.
"""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.runtime import sync
from graphml_cpu.runtime.shares import OWNERS_SHIFT
from graphml_cpu.simd import atomic_load, compare_swap
from graphml_cpu.simd.atomics import call_address

_LOW = (1 << sync.PART_BITS) - 1


@inline
def _claim(line: int, step: int, parts: int) -> int:
    """The next part of an owner's share of a step, -1 if all are taken."""
    while True:
        claimed = atomic_load(line)
        number, taken = claimed >> sync.PART_BITS, 0
        if number == step:
            taken = claimed & _LOW
        if number > step or taken >= parts:
            return -1
        if compare_swap(line, claimed, (step << sync.PART_BITS) + taken + 1):
            return taken


@inline
def _note_taken(group: int, step: int) -> None:
    """Count an owner of a group whose parts of a step are all taken.

    A later step's count may be there already: who has come to that one found nothing left of this one.
    """
    while True:
        counted = atomic_load(group)
        number, owners = counted >> sync.PART_BITS, 0
        if number > step:
            return
        if number == step:
            owners = counted & _LOW
        if compare_swap(group, counted, (step << sync.PART_BITS) + owners + 1):
            return


@inline
def _is_taken(group: int, step: int, owners: int) -> bool:
    """Whether all parts of a group are known to be taken: one read in place of one for each owner."""
    counted = atomic_load(group)
    number = counted >> sync.PART_BITS
    taken: bool = number > step or (number == step and counted & _LOW >= owners)
    return taken


@inline
def take_parts(words: int, step: int, entry: int, block: int, shares: int, ith: int, nth: int) -> None:
    """This thread's parts of a step, then those that others have not come to: its group's, the others'.

    step: its number through all runs. shares: owners and parts as `runtime.shares` packs them.
    """
    owners, parts = shares >> OWNERS_SHIFT, shares & ((1 << OWNERS_SHIFT) - 1)
    groups = (owners + sync.GROUP - 1) // sync.GROUP
    summaries = words + sync.CLAIMS + nth * sync.CLAIM_BYTES
    for turn in range(groups):
        number = (ith // sync.GROUP + turn) % groups
        first = number * sync.GROUP
        count = min(owners - first, sync.GROUP)
        group = summaries + number * sync.CLAIM_BYTES
        if groups > 1 and _is_taken(group, step, count):
            continue
        for other in range(count):
            whose = first + (ith + other) % count
            line = words + sync.CLAIMS + whose * sync.CLAIM_BYTES
            part = _claim(line, step, parts)
            while part >= 0:
                if groups > 1 and part == parts - 1:
                    _note_taken(group, step)
                call_address(entry, (block, whose * parts + part, owners * parts))
                part = _claim(line, step, parts)
