"""Tables of profiles: rows, rates, and what bounds an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from graphml.inspect.profile.measured import MeasuredStage, Profile, ProfileEntry
from graphml.inspect.profile.phases import (
    QKV,
    NodePlace,
)
from graphml.inspect.profile.profile_table import markdown, table
from graphml.ir.work import Work
from tests.looped import looped

BANDWIDTH = 10e9


def stage_of(
    times: Sequence[Sequence[float]], entries: Sequence[ProfileEntry], waits: float = 0.0
) -> MeasuredStage:
    spent = np.array(times)
    wait = np.full_like(spent, waits)
    seconds = (spent + wait).sum(axis=1)
    return MeasuredStage("generation", 1, [], entries, seconds, spent, wait, {0: "attention", 1: "attention"})


ENTRIES = [
    ProfileEntry("other", "", NodePlace(None, "other")),
    ProfileEntry("layers.0.q", "linear", NodePlace(0, QKV), 1, Work(8_000_000, 4_000_000)),
    ProfileEntry("layers.1.q", "linear", NodePlace(1, QKV), 1, Work(8_000_000, 4_000_000)),
    ProfileEntry("layers.1.norm", "rms_norm", NodePlace(1, QKV), 2, Work(100, 0)),
]


def test_rows_are_medians_of_the_sums_and_rates_follow() -> None:
    stage = stage_of([[1e-3, 1e-3, 3e-3, 2e-6], [1e-3, 2e-3, 2e-3, 2e-6], [1e-3, 9e-3, 9e-3, 2e-6]], ENTRIES)
    (linear, outside, norm) = table(stage, "op", BANDWIDTH).rows
    assert (linear["op"], linear["calls"], linear["bound by"]) == ("linear", 2, "arithmetic")
    assert linear["ms"] == pytest.approx(4.0)
    assert linear["GB/s"] == pytest.approx(16e6 / 4e-3 / 1e9)
    assert linear["of bandwidth"] == pytest.approx(0.4)
    assert linear["GFLOP/s"] == pytest.approx(8e6 / 4e-3 / 1e9)
    assert (outside["op"], outside["GB/s"]) == ("(host)", None)
    assert (norm["bound by"], norm["GFLOP/s"]) == ("calls", None)
    layers = table(stage, "layer", BANDWIDTH).rows
    assert [(row["layer"], row["kind"]) for row in layers] == [
        (0, "attention"),
        (1, "attention"),
        (None, "other"),
    ]
    assert layers[1]["ms"] == pytest.approx(3.002)
    assert layers[1]["of median"] == pytest.approx(3.002 / ((2.0 + 3.002) / 2))


def test_where_the_bandwidth_is_not_known_nothing_is_compared_with_it() -> None:
    rows = table(stage_of([[1e-3, 1e-3, 3e-3, 2e-6]], ENTRIES), "op", 0.0).rows
    assert [(row["of bandwidth"], row["bound by"]) for row in rows] == [
        (None, ""),
        (None, ""),
        (None, "calls"),
    ]


@looped(
    ("seconds", "waits", "says"),
    [(1e-3, 0.0, "memory"), (3e-3, 0.0, "arithmetic"), (1e-3, 2e-3, "waiting"), (1e-6, 0.0, "calls")],
)
def test_what_bounds_an_op(seconds: float, waits: float, says: str) -> None:
    stage = stage_of([[0.0, seconds]], ENTRIES[:2], waits)
    assert next(row for row in table(stage, "op", BANDWIDTH).rows if row["op"])["bound by"] in (says, "")
    (row,) = [row for row in table(stage, "op", BANDWIDTH).rows if row["op"] == "linear"]
    assert row["bound by"] == says


def test_a_name_breaks_no_table() -> None:
    odd = replace(ENTRIES[1], name="x|\n| y \x1b[2J")
    stage = stage_of([[1e-3, 1e-3]], [ENTRIES[0], odd])
    found = Profile("m\x1b.gguf", "llama", "cpu", 1, 0, 1, {}, [replace(stage, samples=[None])])  # type: ignore[list-item]
    text = markdown(found, BANDWIDTH, ["node"])
    assert "\x1b" not in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 4


@pytest.mark.parametrize("by", ["phase", "layer", "op", "node"])
@pytest.mark.parametrize("waits", [0.0, 3e-3])
def test_shares_of_all_rows_make_the_whole(by: str, waits: float) -> None:
    times = [[1e-3, 1e-3, 3e-3, 2e-6], [9e-3, 2e-3, 2e-3, 2e-6], [1e-3, 9e-3, 9e-3, 5e-3]]
    stage = stage_of(times, ENTRIES, waits)
    rows = table(stage, by, BANDWIDTH).rows
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert all([*row] == [*rows[0]] for row in rows)
    last = [row for row in rows if "(threads wait)" in row.values()]
    assert len(last) == (waits > 0)
    if waits:
        assert last == [rows[-1]]
        assert last[0]["ms"] == pytest.approx(1e3 * waits * len(ENTRIES))
