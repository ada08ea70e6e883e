"""How the kernels of attention for devices with subgroups are shared out: teams, fetches ahead, tiles.

Knows the sizes of heads and the facts of a device; nothing of nodes. What measurements may change is here.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphml_gpu.dispatch import DeviceView
from graphml_gpu.kernels.attention.fetched_rows import fetches, fours_at_once, fours_of
from graphml_gpu.kernels.attention.merge_teams import MERGE_BYTES
from graphml_gpu.kernels.attention.prefill_registers import QUAD, shared_bytes, tile_fetches
from graphml_gpu.tuning import is_processor

Teams = Mapping[str, int]
"""LANES, AHEAD and GROUP of `attention_teams`; ACROSS, TILE and GROUP of `attention_registers`."""

TEAM_GROUP = 128
LANES = (4, 8, 16, 32)
"""Lanes of a team: the first of these with which an invocation's sums are few enough."""
_FETCHES = 4
"""Fetches of a key, and of a value, that a lane makes at most."""
_SUMS = 64
"""Sums that an invocation holds at most: half of the registers with which an H200 runs 512 of them."""
_UNDER_WAY = 12
"""Fetches that an invocation has under way at most; of 16 bytes, 512 invocations have up to 96 KB."""


def teams(context: DeviceView, heads: int, d: int, d_v: int) -> Teams | None:
    """How `attention_teams` is shared out for so many heads of d and d_v; None: another kernel is better.

    It relies on shuffles. Processors go without: their drivers take four times as long to compile it as
    `attention`.
    """
    features = context.features
    if not features.subgroups or is_processor(context.facts):
        return None
    planes = TEAM_GROUP // min(features.subgroup_min, TEAM_GROUP)
    if planes * fours_of(d_v) * 16 > MERGE_BYTES:
        return None
    for lanes in LANES:
        each = max(fetches(d, lanes), fetches(d_v, lanes))
        sums = 4 * heads * fetches(d_v, lanes) * fours_at_once(d_v)
        if lanes <= features.subgroup_min and each <= _FETCHES and sums <= _SUMS:
            return {"LANES": lanes, "AHEAD": _ahead(heads, each), "GROUP": TEAM_GROUP}
    return None


def _ahead(heads: int, each: int) -> int:
    """Positions whose keys and values a team fetches before it uses any: 1, 2 or 4."""
    most = min(4 if heads <= 2 else 2, max(1, _UNDER_WAY // (2 * each)))
    return 1 << (most.bit_length() - 1)


TILES = ((16, 64, 128), (16, 32, 128), (16, 32, 64), (8, 32, 64), (8, 16, 64), (8, 16, 32))
"""ACROSS, TILE and GROUP of `attention_registers`: the first that fits a device and a head."""
_TILE_FETCHES = 8
"""Fetches that an invocation has under way at most for a tile; their registers are those of 64 sums."""


def tiles(context: DeviceView, d: int, d_v: int) -> Teams | None:
    """How `attention_registers` is shared out for heads of d and d_v; None: another kernel is better.

    Processors go without: their drivers compile `attention_tiles` in two thirds of the time.
    """
    features, facts = context.features, context.facts
    if not features.subgroups or is_processor(facts):
        return None
    for across, tile, group in TILES:
        rows = group // across * QUAD
        sums = 4 * QUAD * -(-fours_of(d_v) // across)
        if (
            across <= features.subgroup_min
            and shared_bytes(d, d_v, rows, tile) <= facts.shared_bytes
            and tile_fetches(max(d, d_v), tile, group) <= _TILE_FETCHES
            and sums <= _SUMS
        ):
            return {"ACROSS": across, "TILE": tile, "GROUP": group}
    return None
