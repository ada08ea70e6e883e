"""Compares two result files row by row: changes of speed, and whether they are beyond the spread.

Reads the JSON of `graphml bench -o json|jsonl` and of llama-bench. Knows rows; measures nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.bench.logit_check import WRONG
from graphml.bench.result_rows import quartiles, too_noisy
from graphml.errors import UsageError
from graphml.inspect.dumps.node_names import printable
from graphml.system.read_files import guarded, plain_text

LARGEST_BYTES = 64 << 20
LARGEST = 1e18  # of any figure
_KEY = ("model_filename", "quant", "place", "gpu_layers", "n_threads", "n_batch", "n_ubatch", "type_k",
        "type_v", "n_prompt", "n_gen", "n_depth", "n_parallel")  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "n_parallel": 1, "quant": "", "place": "", "gpu_layers": -1, "backends": "", "suite_case": "",
}  # fmt: skip
# Further fields that distinguish rows; dropped from the right while the files have no row in common.
# A suite may have one test at one setting twice, once beside a busy process.
_MORE_KEYS = (("backends", "suite_case"), ("backends",), ())
Record = Mapping[str, Any]


@dataclass(frozen=True)
class RowChange:
    """A row of both files. a, b: the figures compared; spread_a, spread_b: their quartiles.

    change: b over a, less 1. beyond_spread: the quartiles do not overlap. wrong: b's logits were not those
    of the reference, so its speed does not count.
    """

    model: str
    backend: str
    threads: int
    test: str
    a: float
    b: float
    spread_a: tuple[float, float]
    spread_b: tuple[float, float]
    wrong: bool = False

    @property
    def change(self) -> float:
        """B over a, less 1: -0.05 is five per cent slower."""
        return self.b / self.a - 1 if self.a else 0.0

    @property
    def beyond_spread(self) -> bool:
        """Whether the quartiles of the two do not overlap."""
        return self.spread_b[1] < self.spread_a[0] or self.spread_b[0] > self.spread_a[1]

    @property
    def refused(self) -> bool:
        """Whether the noise of either is too large for a figure."""
        return too_noisy(self.spread_a[0], self.a, self.spread_a[1]) or too_noisy(
            self.spread_b[0], self.b, self.spread_b[1]
        )

    def slower(self, tolerance: float) -> bool:
        """Whether b is wrong, or slower by more than the tolerance (a part of 1) and beyond the spread."""
        return self.wrong or (not self.refused and self.change < -tolerance and self.beyond_spread)


def read(path: Path) -> list[Record]:
    """The rows of a file; UsageError for one that cannot be read or is no result file."""
    text = plain_text(path, UsageError, LARGEST_BYTES)
    with guarded(path, UsageError, "wanted the JSON of a benchmark"):
        if text.lstrip().startswith("["):
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        for number, row in enumerate(rows):
            _check(path, number, row)
        return list(rows)


def _check(path: Path, number: int, row: Any) -> None:
    """Raise a UsageError that names the field for a row that cannot be compared."""
    if not isinstance(row, dict):
        raise UsageError(f"{path}: row {number}: wanted an object; got {type(row).__name__}")
    wanted = {"n_prompt": 0.0, "n_gen": 0.0, "n_threads": 1.0, "avg_ts": 0.0, "stddev_ts": 0.0}
    if row.get("peer"):
        wanted |= {"ratio": 0.0, "ratio_q1": 0.0, "ratio_q3": 0.0}
    for name, least in wanted.items():
        if not _is_number(row.get(name), least):
            raise UsageError(
                f"{path}: row {number}: {name}: wanted a number of at least {least:g}; got {row.get(name)!r}"
            )
    samples = row.get("samples_ts", [])
    if not (isinstance(samples, list) and all(_is_number(value, 0.0) for value in samples)):
        raise UsageError(f"{path}: row {number}: samples_ts: wanted a list of numbers of at least 0")


def _is_number(value: Any, least: float) -> bool:
    """Whether it is a finite number (JSON has whole ones of any length, Python reads NaN too)."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and least <= value <= LARGEST and not math.isnan(value)


def compare(a: Sequence[Record], b: Sequence[Record], by: str = "t/s") -> list[RowChange]:
    """The rows that both have, in the order of a. by: "t/s", or "ratio" to the peer that each was run with.

    Rows match by test, setting, case of a suite and backend, or on any backend if no row matches so.
    UsageError if no row is in both.
    """
    figure = _FIGURES.get(by)
    if figure is None:
        raise UsageError(f"--by: wanted {' or '.join(_FIGURES)}; got {by!r}")
    changes = []
    for row, other in _pairs(a, b)[0]:
        before, after = figure(row), figure(other)
        if before is not None and after is not None:
            changes.append(_change(row, other, before, after))
    if not changes:
        raise UsageError("the two files have no row in common: same model, threads, types and test")
    return changes


def left_over(a: Sequence[Record], b: Sequence[Record]) -> tuple[list[str], list[str]]:
    """The names of the rows that only a has, and of those that only b has."""
    _, only_a, only_b = _pairs(a, b)
    return [_name(row) for row in only_a], [_name(row) for row in only_b]


def _pairs(
    a: Sequence[Record], b: Sequence[Record]
) -> tuple[list[tuple[Record, Record]], list[Record], list[Record]]:
    """Pairs of rows, in the order of a, and the rows of each file without a counterpart."""
    for more in _MORE_KEYS:
        theirs: dict[tuple[str, ...], Record] = {}
        for row in b:
            theirs.setdefault(_key(row, more), row)
        keys = [_key(row, more) for row in a]
        pairs = [(row, theirs[key]) for row, key in zip(a, keys, strict=True) if key in theirs]
        if pairs:
            only_a = [row for row, key in zip(a, keys, strict=True) if key not in theirs]
            return pairs, only_a, [row for row in b if _key(row, more) not in keys]
    return [], list(a), list(b)


def _name(row: Record) -> str:
    """As "llama 1.1B Q4_0, cpu, 2 threads, tg64"."""
    threads = f"{int(row['n_threads'])} thread{'s' * (row['n_threads'] > 1)}"
    parts = (row.get("model_type", ""), row.get("backends", ""), threads, _test_of(row))
    return printable(", ".join(str(part) for part in parts if part))


def _key(row: Record, more: Sequence[str]) -> tuple[str, ...]:
    key = [row.get(name, _DEFAULTS.get(name)) for name in (*_KEY, *more)]
    key[0] = str(key[0]).replace("\\", "/").rpartition("/")[2]
    return tuple(map(str, key))


_Figure = tuple[float, tuple[float, float]]


def _rate(row: Record) -> _Figure | None:
    samples = row.get("samples_ts")
    if samples:
        q1, median, q3 = quartiles([float(value) for value in samples])
        return median, (q1, q3)
    mean, deviation = float(row["avg_ts"]), float(row["stddev_ts"])
    return mean, (mean - deviation, mean + deviation)


def _ratio(row: Record) -> _Figure | None:
    former = bool(row.get("side")) and "judge" not in row  # the inverse of the first side's
    if not row.get("peer") or former:
        return None
    return float(row["ratio"]), (float(row["ratio_q1"]), float(row["ratio_q3"]))


_FIGURES: Mapping[str, Callable[[Record], _Figure | None]] = {"t/s": _rate, "ratio": _ratio}


def _change(row: Record, other: Record, a: Any, b: Any) -> RowChange:
    return RowChange(
        str(row.get("model_type", "")), str(row.get("backends", "")), int(row["n_threads"]), _test_of(row),
        a[0], b[0], a[1], b[1], other.get("correct") == WRONG,
    )  # fmt: skip


def _test_of(row: Record) -> str:
    """As "tg64", or of a case of a suite "16k context: tg16 @ d16384"."""
    case = f"{row['suite_case']}: " if row.get("suite_case") else ""
    return case + str(row.get("test") or _test_name(row))


def _test_name(row: Record) -> str:
    parts = [f"{kind}{row[name]}" for kind, name in (("pp", "n_prompt"), ("tg", "n_gen")) if row[name]]
    return "+".join(parts) + (f" @ d{row['n_depth']}" if row.get("n_depth") else "")


def markdown(changes: Sequence[RowChange], tolerance: float) -> str:
    """A table with a verdict for each row."""
    lines = ["| model | backend | threads | test | a | b | change | verdict |",
             "| ----- | ------- | ------: | ---: | -: | -: | -----: | ------- |"]  # fmt: skip
    for change in changes:
        name = printable(change.model).replace("|", "\\|")
        figures = " | ".join(
            f"{value:.2f} ({low:.2f} to {high:.2f})"
            for value, (low, high) in ((change.a, change.spread_a), (change.b, change.spread_b))
        )
        lines.append(
            f"| {name} | {printable(change.backend)} | {change.threads} | {printable(change.test)} "
            f"| {figures} | {'' if change.refused else f'{change.change:+.1%}'} "
            f"| {verdict(change, tolerance)} |"
        )
    return "\n".join(lines) + "\n"


def verdict(change: RowChange, tolerance: float) -> str:
    """One word or a few."""
    if change.wrong:
        return WRONG
    if change.refused:
        return "too noisy"
    if change.slower(tolerance):
        return "SLOWER"
    if abs(change.change) <= tolerance:
        return "the same"
    if not change.beyond_spread:
        return "within the spread"
    return "faster" if change.change > 0 else "slower, allowed"
