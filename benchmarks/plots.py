"""Plots of a benchmark, with matplotlib: speed against depth, batch, threads; the kernels' roofline.

`python -m benchmarks.plots RESULTS.json FOLDER` draws what was measured; with `--roofline MODEL`, the
rooflines of that model's kernels too, which are timed here. Knows rows and profiles.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import graphml
from benchmarks.bar_charts import FARTHEST
from benchmarks.stored_rows import read_rows
from graphml import settings
from graphml.backend.optional_parts import NamedDevice
from graphml.bench.logit_check import WRONG
from graphml.bench.result_rows import ResultRow
from graphml.bench.row_formats import device
from graphml.cli.terminal.machine import read_bandwidth
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.profile.measured import MeasuredStage, Profile
from graphml.inspect.profile.profile import profile
from graphml.ir.work import total

# Field of a row -> file name and label of the axis.
AXES: Mapping[str, tuple[str, str]] = {
    "n_depth": ("depth", "tokens in the context before"),
    "n_parallel": ("sequences", "sequences at once"),
    "n_ubatch": ("batch", "tokens of a step (-ub)"),
    "n_threads": ("threads", "threads"),
}
_PLACING = ("quant", "place", "gpu_layers")
_IDENTITY = ("model_type", *_PLACING, "backends", "type_k", "type_v", "n_prompt", "n_gen", *AXES)
SHARE_LABELLED = 0.01  # of the stage's time
TITLES = {"pp": "prompt processing", "tg": "generation"}
LEGEND_INCHES = 0.2  # of a line
INCHES, DPI = (8.0, 5.0), 120
_MULTIPLY = """
import time, numpy
a = numpy.ones((1024, 1024), numpy.float32)
taken = []
for _ in range(8):
    start = time.perf_counter()
    a @ a
    taken.append(time.perf_counter() - start)
print(2 * 1024**3 / min(taken))
"""
Line = tuple[str, list[tuple[float, float, float, float]]]


def draw_speeds(folder: Path, rows: Sequence[ResultRow]) -> list[Path]:
    """Draw tokens per second against each field of which rows that are otherwise equal have two values.

    Returns the written files.
    """
    return [_speed(folder, rows, field) for field in AXES if lines(rows, field)]


def draw_bars(folder: Path, rows: Sequence[ResultRow]) -> list[Path]:
    """Draw a bar chart for each side: tokens per second of its tests, and the roof set by its memory.

    Returns the written files.
    """
    sides = dict.fromkeys(row.backends for row in rows)
    found = {side: [row for row in rows if row.backends == side and _is_figure(row)] for side in sides}
    return [_bars(folder, side, of, rows) for side, of in found.items() if of]


def draw_rooflines(
    folder: Path, measured: Profile, backend: str, bandwidth: float, flops: float
) -> list[Path]:
    """Draw the roofline of each stage; returns the written files.

    bandwidth, flops: bytes and float32 operations per second measured on the backend's device; a roof of 0
    was not measured and is not drawn.
    """
    return [_roofline(folder, measured, backend, stage, bandwidth, flops) for stage in measured.stages]


def _is_figure(row: ResultRow) -> bool:
    """Whether the speed of a row counts."""
    return "t/s" not in row.refused and row.correct != WRONG


def lines(rows: Sequence[ResultRow], field: str) -> list[Line]:
    """Lines of rows that differ only in the field: label, and x, median, quartiles."""
    groups: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in filter(_is_figure, rows):
        groups.setdefault(tuple(getattr(row, name) for name in _IDENTITY if name != field), []).append(row)
    kept = [sorted(group, key=lambda row: int(getattr(row, field))) for group in groups.values()]
    kept = [group for group in kept if len({getattr(row, field) for row in group}) > 1]
    return [
        (
            _label(group[0], field, rows),
            [(float(getattr(row, field)), row.median_ts, row.q1_ts, row.q3_ts) for row in group],
        )
        for group in kept
    ]


def _label(row: ResultRow, field: str, rows: Sequence[ResultRow]) -> str:
    """The label that distinguishes this line from the others."""
    test = [f"{kind}{count}" for kind, count in (("pp", row.n_prompt), ("tg", row.n_gen)) if count]
    parts = [row.suite_case] if row.suite_case and not field else ["+".join(test), row.backends]
    values_differ = any(one.type_k != one.type_v for one in rows)
    for name in (
        "model_type",
        "quant",
        "place",
        "gpu_layers",
        "type_k",
        *(["type_v"] if values_differ else []),
        *AXES,
    ):
        if name != field and len({getattr(one, name) for one in rows}) > 1:
            value = getattr(row, name)
            parts.append(f"{AXES[name][0]} {value}" if name in AXES else printable(str(value)))
    return ", ".join(parts)


def _speed(folder: Path, rows: Sequence[ResultRow], field: str) -> Path:
    """Tokens per second against one field; prompts and generation in panels of their own, legends below."""
    from matplotlib import pyplot

    name, label = AXES[field]
    found = lines(rows, field)
    kinds = [kind for kind in TITLES if any(text.startswith(kind) for text, _ in found)]
    most = max(sum(text.startswith(kind) for text, _ in found) for kind in kinds)
    width, height = INCHES
    figure, panels = pyplot.subplots(
        1, len(kinds), figsize=(width, height + LEGEND_INCHES * most), dpi=DPI, squeeze=False
    )
    for kind, axes in zip(kinds, panels[0], strict=True):
        for text, points in found:
            if text.startswith(kind):
                x, median, low, high = np.array(points).T
                axes.errorbar(
                    x, median, np.array([median - low, high - median]), marker="o", capsize=3, label=text
                )
        axes.set(xlabel=label, ylabel="tokens per second", ylim=(0, None), title=TITLES[kind])
        axes.set_xticks(sorted({x for _, points in found for x, *_ in points}))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14))
    figure.suptitle(", ".join(sorted({printable(row.model_type) for row in rows})))
    return saved(figure, folder / f"{name}.png")


def _bars(folder: Path, side: str, rows: Sequence[ResultRow], everything: Sequence[ResultRow]) -> Path:
    """One side's tests, prompts and generation in panels of their own; dashed: all bytes at the bandwidth."""
    from matplotlib import pyplot

    panels = {
        title: [row for row in rows if bool(row.n_prompt) == (kind == "pp")] for kind, title in TITLES.items()
    }
    panels = {title: of for title, of in panels.items() if of}
    height = max(2.4, 1.2 + 0.45 * max(map(len, panels.values())))
    figure, drawn = pyplot.subplots(
        1, len(panels), figsize=(6.5 * len(panels), height), dpi=DPI, squeeze=False
    )
    for axes, (title, of) in zip(drawn[0], panels.items(), strict=True):
        names = [_label(row, "", everything) for row in of]
        y = np.arange(len(of))
        median, low, high = np.array([(row.median_ts, row.q1_ts, row.q3_ts) for row in of]).T
        axes.barh(y, median, xerr=np.array([median - low, high - median]), capsize=3, color="tab:blue")
        roofs = [
            (i, row.median_ts / row.of_bandwidth) for i, row in enumerate(of) if _has_roof(row, high.max())
        ]
        for number, (i, roof) in enumerate(roofs):
            label = "" if number else "all that is read, at the memory's bandwidth"
            axes.vlines(roof, i - 0.45, i + 0.45, color="black", linestyle="--", label=label)
        axes.set(xlabel="tokens per second", xlim=(0, None), title=title)
        axes.set_yticks(y, [printable(name) for name in names])
        axes.invert_yaxis()
        axes.grid(alpha=0.3, axis="x")
        if roofs:
            axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.5 / height - 0.08))
    models = ", ".join(sorted({printable(row.model_type) for row in rows}))
    figure.suptitle(
        f"{models}\n{printable(side)}" + f": {device(rows[0])}" * bool(rows[0].device), fontsize="medium"
    )
    return saved(figure, folder / f"speed-{_file_name(side)}.png")


def _has_roof(row: ResultRow, longest: float) -> bool:
    """Whether generation's roof is known, and not so far off that the bars would be too short."""
    return bool(row.n_gen and not row.n_prompt and row.of_bandwidth) and (
        row.median_ts / row.of_bandwidth <= FARTHEST * longest
    )


def _file_name(side: str) -> str:
    """A side's name as part of a file's."""
    return "".join(char if char.isalnum() or char in ".-" else "-" for char in side)


def _roofline(
    folder: Path, measured: Profile, backend: str, stage: MeasuredStage, bandwidth: float, flops: float
) -> Path:
    """Each kernel's operations per second against those per byte, below the roofs of memory and compute."""
    from matplotlib import pyplot

    found = kernels(stage)
    figure, axes = pyplot.subplots(figsize=(INCHES[0] + 3, INCHES[1]), dpi=DPI)  # the legend is beside it
    ridge = flops / bandwidth if bandwidth and flops else found[0].intensity if found else 1.0
    left = min([one.intensity for one in found] + [ridge]) / 4
    right = max([one.intensity for one in found] + [ridge]) * 8
    x = np.geomspace(left, right, 200)
    if bandwidth:
        memory = f"bandwidth of its memory, {bandwidth / 1e9:.0f} GB/s"
        axes.plot(x, bandwidth * x / 1e9, color="gray", label=memory)
    if flops:
        arithmetic = f"float32 product of NumPy's BLAS, {flops / 1e9:.0f} GFLOP/s"
        axes.axhline(flops / 1e9, color="gray", linestyle="--", label=arithmetic)
    for one in found:
        label = f"{one.name} {one.share:.0%}" if one.share >= SHARE_LABELLED else None
        axes.scatter(one.intensity, one.speed / 1e9, s=30 + 600 * one.share, alpha=0.7, label=label)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="GFLOP/s", xlim=(left, right))
    threads = f", {measured.threads} thread{'s' * (measured.threads > 1)}" * bool(flops)  # of the host
    axes.set_title(
        f"{printable(measured.model)}, {backend}, {stage.name}{threads}: kernels and their share of the time"
    )
    axes.grid(alpha=0.3, which="both")
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize="small")
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([40])
    return saved(figure, folder / f"roofline-{_file_name(backend)}-{stage.name}.png")


@dataclass(frozen=True)
class Kernel:
    """A kind of node: operations per byte, operations per second, and its share of the stage's time."""

    name: str
    intensity: float
    speed: float
    share: float


def kernels(stage: MeasuredStage) -> list[Kernel]:
    """The nodes of a stage with products, grouped over all layers, the longest first."""
    whole = float(np.median(stage.seconds))
    members: dict[str, list[int]] = {}
    for i, entry in enumerate(stage.entries):
        if entry.op:
            what = entry.name.rpartition(".")[2]
            members.setdefault(what if what == entry.op else f"{entry.op} {what}", []).append(i)
    found = []
    for name, indices in members.items():
        work = total([stage.entries[i].work for i in indices])
        taken = float(np.median(stage.work[:, indices].sum(axis=1)))
        if work.flops and work.n_bytes and taken > 0:
            found.append(
                Kernel(printable(name), work.flops / work.n_bytes, work.flops / taken, taken / whole)
            )
    return sorted(found, key=lambda one: -one.share)


def saved(figure: Any, path: Path) -> Path:
    """Write a figure and forget it; returns the path."""
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return path


def multiply_rate(threads: int) -> float:
    """Floating-point operations per second of NumPy's float32 matrix product with so many threads, the best.

    Asked in a process of its own, because a BLAS fixes its threads when it is loaded; 0 if that fails.
    """
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    command, environment = settings.python_child("-c", _MULTIPLY, **dict.fromkeys(names, str(threads)))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env=environment
        )
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0


def measure_rooflines(folder: Path, model_path: str, backend: str, threads: int | None) -> list[Path]:
    """Time a model's kernels, draw their rooflines; no arithmetic is known of a device."""
    with graphml.load(model_path, backend, threads) as model:
        room = max(model.n_ctx - 16, 1)
        measured = profile(model, min(512, room // 2), min(16, room // 4), 2)
        device = model.executor.device
        if isinstance(device, NamedDevice):
            return draw_rooflines(folder, measured, backend, device.bandwidth(), 0.0)
    count = measured.threads
    return draw_rooflines(folder, measured, backend, read_bandwidth(count), multiply_rate(count))


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(prog="plots", description=__doc__)
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--roofline", metavar="MODEL")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", "-t", type=int)
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    # A suite's case beside busy processes is no point of a curve.
    rows = [row for row in read_rows([asked.results]) if "one thread" not in (row.backends, row.peer)]
    drawn = [*draw_bars(asked.folder, rows), *draw_speeds(asked.folder, rows)]
    if asked.roofline is not None:
        drawn += measure_rooflines(asked.folder, asked.roofline, asked.backend, asked.threads)
    for path in drawn:
        print(f"drew {path}")


if __name__ == "__main__":
    main()
