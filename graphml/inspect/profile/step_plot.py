"""A picture of a mixed run of an engine, with matplotlib: a lane for each sequence, rows of each step.

Knows what was recorded; measures nothing. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from graphml.errors import UsageError
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.profile.mixed_run import MixedRun, RequestTimes

KINDS = (".png", ".svg")
TOKEN, PROMPT, WAITS, FOUND = "tab:blue", "tab:orange", "lightgray", "tab:green"
MARGIN = 5  # steps before and after what is shown
LABELLED = 0.04  # of the time shown: waits that have room for their reason
LANE = 0.8  # of the height that a sequence has
EDGE: Any = {"edgecolor": "white", "linewidth": 0.3}
DPI = 120
INCHES = (10.0, 1.4, 0.32)  # width, height of the rows' panel, height of a lane


def ready(path: Path) -> None:
    """UsageError before measuring if the picture cannot be drawn."""
    if path.suffix not in KINDS:
        raise UsageError(f"plot: wanted a file *.png or *.svg; got {path.name!r}")
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "plot: matplotlib is not installed; in a clone of graphml: pip install '.[plots]'"
        ) from None
    matplotlib.use("Agg")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"plot {path.parent}: cannot be written: {error.strerror or error}")


def draw(path: Path, run: MixedRun) -> None:
    """Draw the steps around the long prompts: from a few before to a few after both are answered."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    arrived = run.requests[-1].arrived_s
    width, rows_height, lane_height = INCHES
    height = rows_height + 1.2 + lane_height * len(run.requests)
    figure, (lanes, bars) = pyplot.subplots(
        2, 1, figsize=(width, height), dpi=DPI, sharex=True,
        height_ratios=[lane_height * len(run.requests), rows_height],
    )  # fmt: skip
    first, last = _shown(run)
    names = {request.sequence: _name(request, run) for request in run.requests}
    for y, request in enumerate(run.requests):
        _lane(lanes, y, request, run, arrived, 1e3 * (last - first))
    lanes.set_yticks(range(len(names)), list(names.values()))
    lanes.invert_yaxis()
    lanes.axvline(0, color="black", linestyle=":", linewidth=1)
    colours = {"its latest token": TOKEN, "rows of its prompt": PROMPT, "waits, and why": WAITS}
    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    handles.append(Patch(color=FOUND, label="after a hit"))
    lanes.legend(handles=handles, fontsize="x-small", loc="upper left", bbox_to_anchor=(1.005, 1.0))
    _rows_of_steps(bars, run, arrived)
    bars.set(xlabel="milliseconds since the long prompts arrived", ylabel="rows of a step")
    bars.grid(alpha=0.3, axis="y")
    most = max(step.n_rows for step in run.steps if first <= step.begin_s < last)
    bars.set_ylim(0, 1.1 * most)
    bars.set_xlim(1e3 * (first - arrived), 1e3 * (last - arrived))
    lanes.set_title(f"{printable(run.model)}, {run.backend}: steps of an engine", fontsize="medium")
    try:
        figure.tight_layout()
        figure.savefig(path, bbox_inches="tight")
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        pyplot.close(figure)


def _rows_of_steps(bars: Any, run: MixedRun, origin: float) -> None:
    """Rows of tokens, and above them those of prompts, as collections: single rectangles are slow to draw."""
    from matplotlib.collections import PolyCollection

    for colour, prompts in ((TOKEN, False), (PROMPT, True)):
        corners = []
        for step in run.steps:
            left, right = 1e3 * (step.begin_s - origin), 1e3 * (step.end_s - origin)
            low, high = (step.n_generating, step.n_rows) if prompts else (0, step.n_generating)
            corners.append([(left, low), (left, high), (right, high), (right, low)])
        bars.add_collection(PolyCollection(corners, facecolors=colour, **EDGE))


def _lane(lanes: Any, y: int, request: RequestTimes, run: MixedRun, origin: float, shown_ms: float) -> None:
    """One sequence's steps as bars, with the number of rows in those of its prompt."""
    waits: list[tuple[float, float, str]] = []
    steps: list[tuple[float, float]] = []
    colours: list[str] = []
    for step in run.steps:
        begin, wide = 1e3 * (step.begin_s - origin), 1e3 * (step.end_s - step.begin_s)
        rows = next((rows for rows in step.rows if rows.sequence == request.sequence), None)
        if rows is not None:
            hit = rows.found or (request.n_cached and not rows.generates)
            steps.append((begin, wide))
            colours.append(TOKEN if rows.generates else FOUND if hit else PROMPT)
            if not rows.generates and request.n_prompt == run.n_prompt:
                lanes.text(begin + wide / 2, y, str(rows.count), ha="center", va="center", fontsize=5)
        for why in (waiting.reason for waiting in step.waiting if waiting.sequence == request.sequence):
            joined = waits.pop()[0] if waits and waits[-1][2] == why else begin
            waits.append((joined, begin + wide, why))
    height = y - LANE / 2, LANE
    lanes.broken_barh(steps, height, facecolors=colours, **EDGE)
    lanes.broken_barh([(begin, end - begin) for begin, end, _ in waits], height, facecolors=WAITS)
    for begin, end, why in waits:
        if end - begin > LABELLED * shown_ms:
            lanes.text((begin + end) / 2, y, why, ha="center", va="center", fontsize="x-small")


def _name(request: RequestTimes, run: MixedRun) -> str:
    long = request in run.requests[run.n_sequences :]
    if not long:
        return "generates"
    cached = f", {request.n_cached} found" if request.n_cached else ""
    return f"{request.n_prompt} ids{cached}"


def _shown(run: MixedRun) -> tuple[float, float]:
    """From a few steps before the long prompts arrived to a few after both have a token."""
    arrived = run.requests[-1].arrived_s
    answered = max(request.token_s[0] for request in run.requests[run.n_sequences :])
    before = [arrived, *reversed([step.begin_s for step in run.steps if step.end_s <= arrived])]
    after = [answered, *(step.end_s for step in run.steps if step.begin_s >= answered)]
    return before[: MARGIN + 1][-1], after[: MARGIN + 1][-1]
