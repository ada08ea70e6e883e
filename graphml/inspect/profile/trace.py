"""Traces in Chrome's format, which ui.perfetto.dev opens: a profile by threads, steps by sequences.

Knows samples, steps and their times; nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from graphml.inspect.profile.measured import MeasuredSample, MeasuredStage, Profile, ProfileEntry
from graphml.runtime.loop.timeline import SequenceRows, TimelineStep, WaitingSequence

PROCESS = 1
LAST_SAMPLES = 4  # a trace of all tokens would be tens of megabytes and repeat itself
SHORTEST_WAIT_NS = 500

Event = dict[str, Any]


def trace(profile: Profile) -> dict[str, Any]:
    """The last prompt and the last tokens: an event per step and thread, per wait, and per phase outside.

    Keys `traceEvents` and `displayTimeUnit`. Times are microseconds since the first event. The events of one
    track do not overlap. Track 0 is the caller's thread; the last track shows the prompts and tokens.
    """
    chosen = [(stage, i) for stage in profile.stages for i in _chosen(stage)]
    start = min(stage.samples[i].begin_s for stage, i in chosen)
    tracks = _Tracks(start, profile.threads)
    for stage, i in chosen:
        tracks.sample(stage, i)
    return {
        "traceEvents": [*_names(profile), *tracks.events],
        "displayTimeUnit": "ns",
        "otherData": {"model": profile.model, "backend": profile.backend},
    }


def _chosen(stage: MeasuredStage) -> list[int]:
    """The samples that are shown."""
    count = len(stage.samples)
    return list(range(count - 1 if stage.name == "prompt" else max(0, count - LAST_SAMPLES), count))


def _names(profile: Profile) -> Iterator[Event]:
    yield metadata("process_name", 0, f"graphml {profile.model} on {profile.backend}")
    for thread in range(profile.threads):
        yield metadata("thread_name", thread, f"thread {thread}{' (caller)' if thread == 0 else ''}")
    yield metadata("thread_name", profile.threads, "prompts and tokens")


def metadata(kind: str, track: int, name: str) -> Event:
    """The name of a process or of a track of it."""
    return {"ph": "M", "pid": PROCESS, "tid": track, "name": kind, "args": {"name": name}}


class _Tracks:
    """The events so far, and where each track ends."""

    def __init__(self, start: float, threads: int) -> None:
        self.events: list[Event] = []
        self._start, self._threads = start, threads
        self._ends = [0] * (threads + 1)

    def sample(self, stage: MeasuredStage, index: int) -> None:
        """One prompt or token with all that happened in it."""
        sample = stage.samples[index]
        name = f"prompt of {stage.tokens} tokens" if stage.name == "prompt" else f"token {index}"
        self._add(self._threads, name, stage.name, sample.begin_s, sample.seconds, {})
        known = {entry.name: entry for entry in stage.entries if entry.op}
        for begin, add in sorted(self._parts(sample, known), key=lambda part: part[0]):
            add(begin)

    def _parts(self, sample: MeasuredSample, known: dict[str, ProfileEntry]) -> Iterator[tuple[float, Any]]:
        """The begin of each event, and the function that writes it: tracks must be written in order."""
        for span in sample.outside:
            yield span.begin_s, lambda at, s=span: self._add(0, s.phase, "outside", at, s.seconds, {})
        for run in sample.runs:
            for step in run.steps:
                facts = _facts(known[step.node.name], step.replicated)
                times = zip(step.begin_s, step.work_s, step.wait_s, strict=True)
                for thread, (begin, worked, waited) in enumerate(times):

                    def add(
                        at: float, thread: int = thread, worked: float = worked, waited: float = waited,
                        name: str = step.node.name, op: str = step.node.op.name, facts: Event = facts,
                    ) -> None:  # fmt: skip
                        self._add(thread, name, op, at, worked, facts)
                        if 1e9 * waited >= SHORTEST_WAIT_NS:
                            self._add(thread, "wait", "wait", at + worked, waited, {"after": name})

                    yield begin, add

    def _add(self, track: int, name: str, kind: str, begin_s: float, seconds: float, facts: Event) -> None:
        begin = max(round(1e9 * (begin_s - self._start)), self._ends[track])
        end = max(round(1e9 * (begin_s - self._start + seconds)), begin)
        self._ends[track] = end
        self.events.append(
            {
                "ph": "X", "pid": PROCESS, "tid": track, "name": name, "cat": kind, "ts": begin / 1000,
                "dur": (end - begin) / 1000, "args": facts,
            }
        )  # fmt: skip


def _facts(entry: ProfileEntry, replicated: bool) -> Event:
    """The facts shown for a selected event."""
    facts: Event = {"op": entry.op, "phase": entry.place.phase, "layer": entry.place.layer}
    facts |= {"bytes": entry.work.n_bytes, "flops": entry.work.flops}
    return {**facts, "replicated": True} if replicated else facts


STEPS, FIRST = 0, 1  # tracks


def step_trace(steps: Sequence[TimelineStep], model: str, backend: str) -> dict[str, Any]:
    """All steps: events for each step and its computing; a track per sequence with what each step was to it.

    Keys `traceEvents` and `displayTimeUnit`. Times are microseconds since the first step. Counters: rows of
    prompts and of tokens, blocks in use, sequences that wait.
    """
    start = steps[0].begin_s if steps else 0.0
    roles = [_roles(step) for step in steps]
    tracks = {
        sequence: FIRST + i
        for i, sequence in enumerate(sorted({sequence_id for each in roles for sequence_id in each}))
    }
    events = [*_tracks_of(tracks, model, backend)]
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


def _roles(step: TimelineStep) -> dict[int, SequenceRows | WaitingSequence]:
    """What a step was to each sequence."""
    return {
        **{waiting.sequence: waiting for waiting in step.waiting},
        **{rows.sequence: rows for rows in step.rows},
    }


def _tracks_of(tracks: dict[int, int], model: str, backend: str) -> Iterator[Event]:
    yield metadata("process_name", STEPS, f"graphml engine: {model} on {backend}")
    for track, name in (
        (STEPS, "steps"),
        *((track, f"sequence {sequence}") for sequence, track in tracks.items()),
    ):
        yield metadata("thread_name", track, name)
        yield {**metadata("thread_sort_index", track, name), "args": {"sort_index": track}}


def _step(step: TimelineStep, start: float) -> Iterator[Event]:
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


def _sequence(
    part: Sequence[tuple[TimelineStep, SequenceRows | WaitingSequence]], track: int, start: float
) -> Iterator[Event]:
    """What each step was to one sequence; steps in which it waits for the same are one event."""
    for why, group in groupby(
        part, lambda entry: entry[1].reason if isinstance(entry[1], WaitingSequence) else None
    ):
        of = list(group)
        if why is not None:
            begin, end = of[0][0].begin_s - start, of[-1][0].end_s - start
            yield _span(track, f"waits: {why}", "wait", begin, end, {"reason": why, "steps": len(of)})
        for step, role in of:
            if isinstance(role, WaitingSequence):
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
