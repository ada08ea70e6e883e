"""An engine's steps as a trace in Chrome's format, which ui.perfetto.dev opens: a track per sequence.

Knows steps and their times; nothing of models, tables or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from graphml.inspect.trace import PROCESS, Event, metadata
from graphml.runtime.timeline import SequenceRows, Step, Waits

STEPS, FIRST = 0, 1  # tracks


def step_trace(steps: Sequence[Step], model: str, backend: str) -> dict[str, Any]:
    """All steps: events for each step and its computing; a track per sequence with what each step was to it.

    Keys `traceEvents` and `displayTimeUnit`. Times are microseconds since the first step. Counters: rows of
    prompts and of tokens, blocks in use, sequences that wait.
    """
    start = steps[0].begin_s if steps else 0.0
    roles = [_roles(step) for step in steps]
    tracks = {
        sequence: FIRST + i for i, sequence in enumerate(sorted({one for each in roles for one in each}))
    }
    events = [*_names(tracks, model, backend)]
    for step in steps:
        events += _step(step, start)
    for sequence, track in tracks.items():
        part = [(step, each[sequence]) for step, each in zip(steps, roles, strict=True) if sequence in each]
        events += _sequence(part, track, start)
        lost = (step for step in steps if sequence in step.preempted)
        events += [_mark(track, "preempted", step.begin_s - start) for step in lost]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"model": model, "backend": backend},
    }


def _roles(step: Step) -> dict[int, SequenceRows | Waits]:
    """What a step was to each sequence."""
    return {**{one.sequence: one for one in step.waiting}, **{one.sequence: one for one in step.rows}}


def _names(tracks: dict[int, int], model: str, backend: str) -> Iterator[Event]:
    yield metadata("process_name", STEPS, f"graphml engine: {model} on {backend}")
    for track, name in ((STEPS, "steps"), *((track, f"sequence {one}") for one, track in tracks.items())):
        yield metadata("thread_name", track, name)
        yield {**metadata("thread_sort_index", track, name), "args": {"sort_index": track}}


def _step(step: Step, start: float) -> Iterator[Event]:
    prompts = step.n_rows - step.n_generating
    name = " + ".join(
        text
        for count, text in (
            (step.n_generating, f"{step.n_generating} tokens"),
            (prompts, f"{prompts} of prompts"),
        )
        if count
    )
    facts = {
        "step": step.number, "rows": step.n_rows, "budget": step.budget, "evicted blocks": step.evicted,
        "blocks used": step.blocks_used, "blocks free": step.blocks_free, "preempted": list(step.preempted),
        "failed": step.failed,
    }  # fmt: skip
    yield _span(STEPS, name or "preemption", "step", step.begin_s - start, step.end_s - start, facts)
    if step.compute_s:
        computed = min(step.begin_s + step.compute_s, step.end_s)
        yield _span(STEPS, "computed", "computed", step.begin_s - start, computed - start, {})
    counters = {
        "rows": {"tokens": step.n_generating, "prompts": prompts},
        "blocks in use": {"blocks": step.blocks_used},
        "waiting": {"sequences": len(step.waiting)},
    }
    for what, values in counters.items():
        yield {"ph": "C", "pid": PROCESS, "name": what, "ts": 1e6 * (step.begin_s - start), "args": values}


def _sequence(part: Sequence[tuple[Step, SequenceRows | Waits]], track: int, start: float) -> Iterator[Event]:
    """What each step was to one sequence; steps in which it waits for the same are one event."""
    for why, group in groupby(part, lambda one: one[1].reason if isinstance(one[1], Waits) else None):
        of = list(group)
        if why is not None:
            begin, end = of[0][0].begin_s - start, of[-1][0].end_s - start
            yield _span(track, f"waits: {why}", "wait", begin, end, {"reason": why, "steps": len(of)})
        for step, role in of:
            if isinstance(role, Waits):
                continue
            kind = "token" if role.generates else "prompt"
            name = f"prompt: {role.count} rows"
            if role.generates:
                name = f"token, {role.drafted} drafted" if role.drafted else kind
            facts = {"step": step.number, "rows": role.count, "start": role.start, "found": role.found}
            facts["drafted"] = role.drafted
            yield _span(track, name, kind, step.begin_s - start, step.end_s - start, facts)
            if role.found:
                yield _mark(track, f"found {role.found} ids", step.begin_s - start)


def _span(track: int, name: str, kind: str, begin_s: float, end_s: float, facts: Event) -> Event:
    return {
        "ph": "X", "pid": PROCESS, "tid": track, "name": name, "cat": kind, "ts": 1e6 * begin_s,
        "dur": 1e6 * max(0.0, end_s - begin_s), "args": facts,
    }  # fmt: skip


def _mark(track: int, name: str, at_s: float) -> Event:
    return {"ph": "i", "pid": PROCESS, "tid": track, "name": name, "s": "t", "ts": 1e6 * at_s}
