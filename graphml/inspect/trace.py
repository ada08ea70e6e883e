"""A profile as a trace in Chrome's format, which ui.perfetto.dev opens: a track per thread.

Knows samples and their times; nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphml.inspect.measured import Entry, Profile, Sample, Stage

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


def _chosen(stage: Stage) -> list[int]:
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

    def sample(self, stage: Stage, index: int) -> None:
        """One prompt or token with all that happened in it."""
        sample = stage.samples[index]
        name = f"prompt of {stage.tokens} tokens" if stage.name == "prompt" else f"token {index}"
        self._add(self._threads, name, stage.name, sample.begin_s, sample.seconds, {})
        known = {entry.name: entry for entry in stage.entries if entry.op}
        for begin, add in sorted(self._parts(sample, known), key=lambda part: part[0]):
            add(begin)

    def _parts(self, sample: Sample, known: dict[str, Entry]) -> Iterator[tuple[float, Any]]:
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


def _facts(entry: Entry, replicated: bool) -> Event:
    """The facts shown for a selected event."""
    facts: Event = {"op": entry.op, "phase": entry.place.phase, "layer": entry.place.layer}
    facts |= {"bytes": entry.work.n_bytes, "flops": entry.work.flops}
    return {**facts, "replicated": True} if replicated else facts
