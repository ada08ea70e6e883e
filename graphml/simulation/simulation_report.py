"""What a simulation says: counts, percentiles and seconds of replicas, as a value, JSON and lines of a table.

Knows numbers alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

BINS = 200
"""Of gaps between tokens, for each factor of e: half a percent wide."""


class Gaps:
    """Seconds between tokens, counted by size: there are too many to keep."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float, count: int = 1) -> None:
        """So many gaps of about this size."""
        self._counts[math.floor(math.log(max(seconds, 1e-9)) * BINS)] += count

    def percentile(self, share: float) -> float:
        """The size that this share of all does not exceed; 0 of none."""
        left = share * self._counts.total()
        for size, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return math.exp((size + 0.5) / BINS)
        return 0.0


@dataclass(frozen=True)
class SimulationReport:
    """Seconds are of the simulated clock, until the last answer has ended.

    requests: all that came: answered; broken off by a replica's death; refused, since too long or too many
    waited. asked_again: that a death had others answer. tokens: of answers; prompt_tokens, hit_tokens: of
    answered requests' prompts, and those of them that blocks held already. ttft, itl: milliseconds to the
    first token and between tokens. replica_s: of all replicas, from their start on; busy: the share of them
    in steps. replicas_mean, _most: at a time. preempted: sequences that gave their blocks back.
    prefix_copies: replicas that a shared beginning was computed on, on average. front_busy: of the front, by
    the tokens it passed on; above 1 a single one is too slow.
    """

    requests: int
    answered: int
    broken: int
    refused: int
    asked_again: int
    seconds: float
    tokens: int
    tokens_per_s: float
    prompt_tokens: int
    hit_tokens: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    replica_s: float
    replicas_mean: float
    replicas_most: int
    busy: float
    preempted: int
    deaths: int
    prefix_copies: float
    front_busy: float

    def as_dict(self) -> dict[str, Any]:
        """Its figures by name."""
        return asdict(self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """What each line of a table is of, and what it says."""
        yield "requests", f"{self.requests:,}: {self.answered:,} answered, {self.refused:,} refused"
        if self.deaths:
            yield (
                "deaths",
                f"{self.deaths:,}: {self.asked_again:,} requests asked again, {self.broken:,} answers broken",
            )
        yield "seconds", f"{self.seconds:,.1f}"
        yield "tokens", f"{self.tokens:,} generated, {self.tokens_per_s:,.1f} t/s"
        share = self.hit_tokens / max(1, self.prompt_tokens)
        yield "prompts", f"{self.prompt_tokens:,} tokens, {self.hit_tokens:,} of them found ({share:.0%})"
        yield "first token", f"{self.ttft_p50_ms:,.0f} ms (p50), {self.ttft_p99_ms:,.0f} ms (p99)"
        yield "between tokens", f"{self.itl_p50_ms:,.1f} ms (p50), {self.itl_p99_ms:,.1f} ms (p99)"
        yield (
            "replicas",
            f"{self.replicas_mean:,.1f} on average, {self.replicas_most:,} at most, {self.busy:.0%} busy",
        )
        yield "cost", f"{self.replica_s:,.0f} replica-seconds"
        if self.prefix_copies:
            yield "beginnings", f"each on {self.prefix_copies:,.1f} replicas"
        if self.preempted:
            yield "preempted", f"{self.preempted:,}"
        if self.front_busy:
            late = "" if self.front_busy < 1 else ": more than a front can pass on"
            yield "front", f"{self.front_busy:.0%} busy{late}"
