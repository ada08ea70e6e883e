"""Tables of a mixed run: its steps by kind, and its requests. As Markdown and JSON.

Knows what was recorded; measures nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from graphml.inspect.dumps.node_names import printable
from graphml.inspect.profile.mixed_run import WAITS, MixedRun, RequestTimes
from graphml.inspect.profile.text_table import text_table
from graphml.runtime.loop.timeline import TimelineStep

Row = dict[str, Any]
_NUMBERS = {
    "steps": "d", "rows": "g", "most rows": "d", "ms": ".2f", "most ms": ".2f", "computed": ".0%",
    "share": ".1%",
    "sequence": "d", "prompt": "d", "found": "d", "first token ms": ".2f", "ms a token": ".2f",
}  # fmt: skip
KINDS = ("tokens", "tokens and prompts", "prompts")


def kind_of(step: TimelineStep) -> str:
    """What the rows of a step are: one of `KINDS`; "" for a step without rows."""
    prompts = step.n_rows > step.n_generating
    if not step.n_generating:
        return "prompts" if prompts else ""
    return "tokens and prompts" if prompts else "tokens"


def markdown(run: MixedRun) -> str:
    """The tables, with a line that says what was run."""
    head = (
        f"{printable(run.model)}: {run.arch} on {run.backend}; {run.n_sequences} sequences generate "
        f"{run.n_gen} tokens each; two requests with one prompt of {run.n_prompt} tokens arrive meanwhile; "
        f"a step is to take {1e3 * run.target_s:g} ms while a sequence generates"
    )
    kinds = text_table(list(_kinds(run)), _NUMBERS)
    requests = text_table([_request(run, request) for request in run.requests], _NUMBERS)
    return "\n".join((head, "", *kinds, *_shares(run), "", *requests, ""))


def as_json(run: MixedRun) -> dict[str, Any]:
    """Everything that was recorded; seconds are since the first step."""
    record = dataclasses.asdict(run)
    start = run.steps[0].begin_s if run.steps else 0.0
    for step in record["steps"]:
        step["begin_s"] -= start
        step["end_s"] -= start
    for request in record["requests"]:
        request["arrived_s"] -= start
        request["token_s"] = [at - start for at in request["token_s"]]
    return record


def _shares(run: MixedRun) -> Iterator[str]:
    """The table of ops, and what the main ones take together."""
    if run.shares:
        rows = [
            {"a step of tokens": op_time.op, "ms": 1e3 * op_time.seconds, "share": op_time.share}
            for op_time in run.shares
        ]
        main = sum(op_time.share for op_time in run.shares if op_time.main)
        waits = sum(op_time.share for op_time in run.shares if op_time.op == WAITS)
        yield from ("", *text_table(rows, _NUMBERS), "")
        yield (
            f"Products and attention: {main:.1%} of the step; {main / max(1.0 - waits, 1e-9):.1%} of what "
            "is no wait."
        )


def _kinds(run: MixedRun) -> Iterator[Row]:
    for kind in KINDS:
        of = [step for step in run.steps if kind_of(step) == kind]
        if of:
            rows, taken = [step.n_rows for step in of], [step.end_s - step.begin_s for step in of]
            yield {
                "rows of": kind, "steps": len(of), "rows": median(rows), "most rows": max(rows),
                "ms": 1e3 * median(taken), "most ms": 1e3 * max(taken),
                "computed": sum(step.compute_s for step in of) / sum(taken),
            }  # fmt: skip


def _request(run: MixedRun, request: RequestTimes) -> Row:
    gaps = request.gaps_s or [0.0]
    return {
        "sequence": request.sequence, "prompt": request.n_prompt, "found": request.n_cached,
        "first token ms": 1e3 * request.first_s, "ms a token": 1e3 * median(gaps), "most ms": 1e3 * max(gaps),
        "waited for": _waits(run.steps, request.sequence),
    }  # fmt: skip


def _waits(steps: Sequence[TimelineStep], sequence: int) -> str:
    """As "prefix (4 steps)"."""
    reasons = Counter(
        waiting.reason for step in steps for waiting in step.waiting if waiting.sequence == sequence
    )
    return ", ".join(f"{why} ({count} step{'s' * (count > 1)})" for why, count in reasons.items())
