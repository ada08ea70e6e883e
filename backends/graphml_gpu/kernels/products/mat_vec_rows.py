"""What the kernels for few rows of activations share: how rows of weights are multiplied, summed and stored.

Each weight is unpacked once, in registers. Knows nothing of graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml_gpu.kernels.weight_rows import WeightRowFormat, place, quad_of, row_bytes, unpacked
from graphml_gpu.language import (
    Array,
    Read,
    barrier,
    cluster_sum,
    dot,
    f32,
    f32x4,
    function,
    has_subgroups,
    local_id,
    most_subgroups,
    private_array,
    shared_array,
    subgroup_count,
    subgroup_id,
    subgroup_lane,
    subgroup_size_min,
    subgroup_sum,
    u32,
    unroll,
)


@dataclass(frozen=True)
class Teams:
    """How a workgroup of `group` invocations shares rows of weights, known when compiling.

    `lanes` invocations share a row, unit by unit, and sum up at the end (one lane: no exchange at all, which
    suits devices that are processors). Each such team works at `rows` rows, `count` rows apart, and at
    `columns` rows of activations, so that both are read once for all of these.
    """

    group: int
    lanes: int
    rows: int
    columns: int

    @property
    def count(self) -> int:
        """Teams of a group."""
        return self.group // self.lanes


@function
def float_products(
    w: Read[u32], table: Read[u32], x: Any, begin: u32, row: u32, column: u32, n: u32, k: u32, columns: u32,
    FORMAT: WeightRowFormat, ELEMENT: Any, TEAMS: Teams,
) -> Array[f32]:  # fmt: skip
    """Rows `row` + r * teams of w [n, k] times rows `column` + c of x [columns, k]: [rows * columns].

    All lanes of a team get them. Rows and columns beyond the last stand for the last. begin: w's byte.
    """
    sums = private_array(f32, TEAMS.rows * TEAMS.columns)
    for i in unroll(TEAMS.rows * TEAMS.columns):
        sums[i] = 0.0
    values = private_array(f32x4, TEAMS.rows * 4)
    for unit in range(local_id(0) % TEAMS.lanes, (k + 15) // 16, TEAMS.lanes):
        for r in unroll(TEAMS.rows):
            start = begin + min(row + r * TEAMS.count, n - 1) * row_bytes(k, FORMAT.name)
            quads = unpacked(w, table, start, unit, k, FORMAT)
            for quad in unroll(4):
                values[4 * r + quad] = quads[quad]
        for c in unroll(TEAMS.columns):
            start = min(column + c, columns - 1) * k
            for quad in unroll(4):
                four = quad_of(x, start, place(unit, quad, FORMAT.name), k, FORMAT.even, ELEMENT)
                for r in unroll(TEAMS.rows):
                    sums[r * TEAMS.columns + c] += dot(values[4 * r + quad], four)
    sum_over_lanes(sums, TEAMS.group, TEAMS.lanes, TEAMS.rows * TEAMS.columns)
    return sums


@function
def sum_over_lanes(sums: Array[f32], GROUP: int, LANES: int, COUNT: int) -> None:
    """Give all lanes of a team the sums of theirs: all COUNT of them between the same barriers."""
    if LANES == 1 or (has_subgroups() and subgroup_size_min() >= LANES):
        for i in unroll(COUNT):
            sums[i] = cluster_sum(sums[i], LANES)
    elif has_subgroups() and LANES == GROUP:
        sum_over_subgroups(sums, COUNT)
    else:
        sum_in_shared(sums, GROUP, LANES, COUNT)


@function
def sum_over_subgroups(sums: Array[f32], COUNT: int) -> None:
    """Over the whole group: within subgroups, then over these."""
    most = most_subgroups()
    partial = shared_array(f32, COUNT * most)
    for i in unroll(COUNT):
        inner = subgroup_sum(sums[i])
        if subgroup_lane() == 0:
            partial[i * most + subgroup_id()] = inner
    barrier()
    for i in unroll(COUNT):
        total = partial[i * most]
        for other in range(1, subgroup_count()):
            total += partial[i * most + other]
        sums[i] = total
    barrier()


@function
def sum_in_shared(sums: Array[f32], GROUP: int, LANES: int, COUNT: int) -> None:
    """In shared memory: first some lanes take a run of their team's each, then all take what those made."""
    assert LANES & (LANES - 1) == 0, f"wanted a power of two of lanes, got {LANES}"
    run = 1 << ((LANES.bit_length() - 1) // 2)
    runs = LANES // run
    partial = shared_array(f32, COUNT * GROUP)
    totals = shared_array(f32, COUNT * (GROUP // run))
    me, lane, team = local_id(0), local_id(0) % LANES, local_id(0) // LANES
    for i in unroll(COUNT):
        partial[i * GROUP + me] = sums[i]
    barrier()
    if lane < runs:
        for i in unroll(COUNT):
            total = f32(0.0)
            for j in range(0, run):
                total += partial[i * GROUP + team * LANES + lane * run + j]
            totals[(i * (GROUP // LANES) + team) * runs + lane] = total
    barrier()
    for i in unroll(COUNT):
        total = f32(0.0)
        for j in range(0, runs):
            total += totals[(i * (GROUP // LANES) + team) * runs + j]
        sums[i] = total
    barrier()


@function
def first_row(group: u32, TEAMS: Teams) -> u32:
    """The first row of weights that this invocation's team works at, of group number `group`."""
    return group * (TEAMS.count * TEAMS.rows) + local_id(0) // TEAMS.lanes


@function
def store(
    sums: Array[f32], bias: Read[f32], residual: Read[f32], y: Any, row: u32, column: u32, n: u32,
    columns: u32, first: u32, begin: u32, stride: u32, TEAMS: Teams, BIAS: bool, RESIDUAL: bool,
) -> None:  # fmt: skip
    """y[begin + column * stride + row] = sum + bias[first + row] + residual; one lane a team does it."""
    if local_id(0) % TEAMS.lanes == 0:
        for r in unroll(TEAMS.rows):
            for c in unroll(TEAMS.columns):
                here = row + r * TEAMS.count
                if here < n and column + c < columns:
                    at = begin + (column + c) * stride + here
                    total = sums[r * TEAMS.columns + c]
                    if BIAS:
                        total += bias[first + here]
                    if RESIDUAL:
                        total += residual[at]
                    y[at] = total
