"""A profile as tables, by phase, layer, op or node, in Markdown, CSV or JSON.

Knows measured numbers; nothing of files or terminals. Measures nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.inspect.dumps.node_names import printable
from graphml.inspect.profile.measured import MeasuredStage, Profile, ProfileEntry
from graphml.inspect.profile.phases import ATTENTION, EMBEDDING, PHASES
from graphml.inspect.profile.text_table import text_table
from graphml.ir.work import total

BY = ("phase", "op", "layer", "node")
MEMORY_BOUND = 0.6  # of the measured bandwidth
SHORT_CALL_S = 2e-6
HOST, WAITS = "(host)", "(threads wait)"
"""Rows of what is no op: work outside the programs, and the waits of all rows together."""
_NUMBERS = {
    "ms": ".3f", "share": ".1%", "waits ms": ".3f", "of median": ".2f", "MB": ".2f", "GB/s": ".1f",
    "of bandwidth": ".0%", "GFLOP/s": ".1f",
}  # fmt: skip

Row = dict[str, Any]


@dataclass(frozen=True)
class StageTable:
    """Rows of one stage; every row has the same columns. Milliseconds are medians of the stage's samples."""

    stage: str
    by: str
    rows: Sequence[Row]


def table(stage: MeasuredStage, by: str, bandwidth: float) -> StageTable:
    """One stage grouped by phase, layer, op or node. bandwidth: measured bytes per second; 0: not known.

    `ms`: work, the mean of the threads, without waiting for each other, which is `waits ms` and, of all rows
    together, a row of its own. `share`: of the whole sample, the mean of the samples; all rows make 100 %.
    Bytes are those that the op has to read, weights and values.
    """
    keys, columns = _GROUPS[by]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, entry in enumerate(stage.entries):
        groups.setdefault(keys(entry), []).append(i)
    rows = []
    for key, members in groups.items():
        taken = float(np.median(stage.work[:, members].sum(axis=1)))
        waited = float(np.median(stage.wait[:, members].sum(axis=1)))
        entries = [stage.entries[i] for i in members]
        row: Row = dict(zip(columns, key, strict=True))
        if by == "layer":
            row["kind"] = _kind(stage, entries[0])
        rates = _rates(entries, taken, waited, bandwidth) if by in ("op", "node") else {}
        calls = {"calls": sum(entry.calls for entry in entries)} if rates else {}
        times = {"ms": 1e3 * taken, "share": _share(stage, stage.work, members), "waits ms": 1e3 * waited}
        rows.append({**row, **calls, **times, **rates})
    if by == "layer":
        usual = float(np.median([row["ms"] for row in rows if isinstance(row["layer"], int)] or [0.0]))
        for row in rows:
            in_layer = isinstance(row["layer"], int) and usual > 0
            row["of median"] = row["ms"] / usual if in_layer else None
    ordered = _in_order(rows, by)
    if stage.wait.any():
        every = slice(None)
        waits = dict.fromkeys(ordered[0]) | {
            columns[0] if by != "layer" else "kind": WAITS, "share": _share(stage, stage.wait, every),
            "ms": 1e3 * float(np.median(stage.wait.sum(axis=1))),
        }  # fmt: skip
        ordered.append(waits)
    return StageTable(stage.name, by, ordered)


def _share(stage: MeasuredStage, spent: NDArray[np.float64], members: list[int] | slice) -> float:
    """The part of a sample that some entries take, the mean of the samples."""
    return float(np.mean(spent[:, members].sum(axis=1) / stage.seconds))


def _kind(stage: MeasuredStage, entry: ProfileEntry) -> str:
    layer, phase = entry.place.layer, entry.place.phase
    if layer is not None:
        return stage.kinds.get(layer, "")
    return "position tables" if phase == ATTENTION else phase


def _rates(entries: Sequence[ProfileEntry], taken: float, waited: float, bandwidth: float) -> Row:
    done = total([entry.work for entry in entries])
    calls = sum(entry.calls for entry in entries)
    speed = done.n_bytes / taken if taken > 0 else 0.0
    flops = done.flops / taken if taken > 0 else 0.0
    return {
        "MB": done.n_bytes / 1e6,
        "GB/s": speed / 1e9 if calls else None,
        "of bandwidth": speed / bandwidth if calls and bandwidth else None,
        "GFLOP/s": flops / 1e9 if done.flops else None,
        "bound by": bound_by(calls, taken, waited, speed, bandwidth),
    }


def bound_by(calls: int, taken: float, waited: float, speed: float, bandwidth: float) -> str:
    """The bottleneck, by the first rule that applies; see docs/profiling.md."""
    if not calls:
        return ""
    if waited > taken:
        return "waiting"
    if taken < SHORT_CALL_S * calls:
        return "calls"
    if not bandwidth:
        return ""
    return "memory" if speed >= MEMORY_BOUND * bandwidth else "arithmetic"


def _layer_key(entry: ProfileEntry) -> tuple[Any, ...]:
    """The layer; outside the layers the phase, which `_in_order` sorts by and the kind column shows."""
    return (entry.place.phase if entry.place.layer is None else entry.place.layer,)


_GROUPS: Mapping[str, tuple[Callable[[ProfileEntry], tuple[Any, ...]], tuple[str, ...]]] = {
    "phase": (lambda entry: (entry.place.phase,), ("phase",)),
    "layer": (_layer_key, ("layer",)),
    "op": (lambda entry: (entry.op or HOST,), ("op",)),
    "node": (
        lambda entry: (entry.name, entry.op or HOST, entry.place.layer, entry.place.phase),
        ("node", "op", "layer", "phase"),
    ),
}


def _in_order(rows: list[Row], by: str) -> list[Row]:
    if by == "phase":
        return sorted(rows, key=lambda row: PHASES.index(row["phase"]))
    if by == "op":
        return sorted(rows, key=lambda row: -float(row["ms"]))
    if by == "layer":
        rows = sorted(rows, key=_layer_order)
        return [{**row, "layer": row["layer"] if isinstance(row["layer"], int) else None} for row in rows]
    return rows


def _layer_order(row: Row) -> tuple[int, int]:
    layer = row["layer"]
    if isinstance(layer, int):
        return 1, layer
    before = PHASES.index(layer) <= PHASES.index(EMBEDDING) or layer == ATTENTION
    return 0 if before else 2, PHASES.index(layer)


def markdown(profile: Profile, bandwidth: float, by: Sequence[str]) -> str:
    """All stages, a paragraph and tables each."""
    lines = [headline(profile, bandwidth)]
    for stage in profile.stages:
        lines += ["", f"## {stage.name}", summary(stage)]
        for grouping in by:
            lines += ["", *text_table(table(stage, grouping, bandwidth).rows, _NUMBERS)]
    return "\n".join(lines) + "\n"


def headline(profile: Profile, bandwidth: float) -> str:
    """The model, backend, threads and sizes of a profile."""
    where = f"{profile.architecture} on {profile.backend}, {profile.threads} threads"
    read = f"; memory is read at {bandwidth / 1e9:.1f} GB/s" if bandwidth else ""
    return f"{printable(profile.model)}: {where}{read}"


def summary(stage: MeasuredStage) -> str:
    """The time of a sample, and its speed."""
    whole = float(np.median(stage.seconds))
    waited = float(np.median(stage.wait.sum(axis=1)))
    count = len(stage.samples)
    what = (
        f"{stage.tokens} tokens in {1e3 * whole:.2f} ms"
        if stage.name == "prompt"
        else f"{1e3 * whole:.3f} ms a token"
    )
    speed = f"{what}, the median of {count}: {stage.tokens / whole:.1f} tokens/s; "
    if not stage.barriers and not waited:  # one thread, or a device without threads that meet
        calls, layer_calls = kernel_calls(stage)
        encoded = "" if stage.encode_s is None else f", encoded in {1e3 * stage.encode_s:.3f} ms"
        return f"{speed}{calls} kernel calls, {layer_calls:.1f} a layer{encoded}"
    return (
        f"{speed}{1e3 * waited:.3f} ms of it ({waited / whole:.1%}) the threads wait for each other, at "
        f"{stage.barriers} barriers, {stage.layer_barriers:.1f} a layer"
    )


def kernel_calls(stage: MeasuredStage) -> tuple[int, float]:
    """Kernel calls (on a GPU: dispatches) of a sample, and how many of them a layer has on average."""
    in_layers = sum(entry.calls for entry in stage.entries if entry.place.layer is not None)
    return sum(entry.calls for entry in stage.entries), in_layers / max(len(stage.kinds), 1)


def comma_separated(profile: Profile, bandwidth: float, by: str) -> str:
    """One table of all stages as CSV, whose first column is the stage; shares are parts of 1."""
    out = io.StringIO()
    tables = [table(stage, by, bandwidth) for stage in profile.stages]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stage", *tables[0].rows[0]])
    for stage_table in tables:
        for row in stage_table.rows:
            writer.writerow([stage_table.stage, *("" if value is None else value for value in row.values())])
    return out.getvalue()


def as_json(profile: Profile, bandwidth: float, by: Sequence[str] = BY) -> dict[str, Any]:
    """Everything as JSON values; the names of the tables' columns are those of the other forms."""
    return {
        "format": "graphml-profile-1",
        "model": profile.model,
        "architecture": profile.architecture,
        "backend": profile.backend,
        "threads": profile.threads,
        "n_prompt": profile.n_prompt,
        "n_gen": profile.n_gen,
        "bandwidth": bandwidth,
        "fusions": dict(profile.fusions),
        "stages": [
            {
                "name": stage.name,
                "tokens": stage.tokens,
                "ms": [round(1e3 * float(seconds), 6) for seconds in stage.seconds],
                "tokens_per_second": stage.tokens / float(np.median(stage.seconds)),
                "calls": kernel_calls(stage)[0],
                "calls_per_layer": kernel_calls(stage)[1],
                "barriers": stage.barriers,
                "barriers_per_layer": stage.layer_barriers,
                "encode_ms": None if stage.encode_s is None else round(1e3 * stage.encode_s, 6),
                **{grouping: list(table(stage, grouping, bandwidth).rows) for grouping in by},
            }
            for stage in profile.stages
        ],
    }
