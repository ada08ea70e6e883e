"""Loads of servers in turns, as rows with medians and percentiles.

Knows rounds and figures; nothing of protocols.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

from graphml.backend import Progress, no_progress
from graphml.bench.latencies import itl_ms, three, ttft_ms
from graphml.bench.measure import WORKING
from graphml.bench.result_rows import NOISY, quartiles
from graphml.bench.server_load import Outcome, ServerLoad, send
from graphml.bench.written_rows import as_json, speed, table
from graphml.inspect.dumps.node_names import printable


@dataclass(frozen=True)
class ServerRow:
    """A load of one server. load: as it was sent, without the key.

    samples_ts: generated tokens per second of all clients together, of each round; median_ts, q1_ts, q3_ts:
    of those. ratio: the median of the rounds' ratios to the first server. ttft_ms, itl_ms: percentiles (p50,
    p95, p99) over the answers, and over the gaps between their pieces, of all rounds. n_prompt: tokens of
    prompts by the server's count, n_cached of them found computed. errors: by kind.
    long_ms: to the long prompt's first token, the median of the rounds; 0: there was none.
    """

    server: str
    load: dict[str, Any]
    test_time: str
    n_requests: int
    n_answers: int
    n_tokens: int
    median_ts: float
    q1_ts: float
    q3_ts: float
    noisy: bool
    ratio: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    n_prompt: int
    n_cached: int
    errors: dict[str, int]
    long_ms: float
    samples_ts: tuple[float, ...]


def measure_servers(
    servers: Sequence[str],
    loads: Sequence[ServerLoad],
    rounds: int,
    warm: bool = True,
    progress: Progress = no_progress,
) -> Iterator[ServerRow]:
    """Send each load `rounds` times to each server in turns; rows in order of loads, then of servers."""
    for load in loads:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if warm:
            for server in servers:
                send(server, replace(load, clients=1, requests=1, n_gen=4, seed=load.seed - 1))
        by_server: dict[str, list[Outcome]] = {server: [] for server in servers}
        for done in range(rounds):
            progress(WORKING, done, rounds)
            for server, outcomes in by_server.items():  # of every round the prompts are new to each server
                outcomes.append(send(server, replace(load, seed=load.seed + done)))
        progress(WORKING, rounds, rounds)
        first = by_server[servers[0]]
        for server, outcomes in by_server.items():
            yield _row(server, load, now, outcomes, first)


def _row(
    server: str, load: ServerLoad, now: str, outcomes: Sequence[Outcome], first: Sequence[Outcome]
) -> ServerRow:
    rates = [outcome.tokens_per_s for outcome in outcomes]
    q1, middle, q3 = quartiles(rates)
    ratios = [
        outcome.tokens_per_s / base.tokens_per_s
        for outcome, base in zip(outcomes, first, strict=True)
        if base.tokens_per_s
    ]
    answers = [answer for outcome in outcomes for answer in outcome.answers]
    long = [outcome.long.ttft_s * 1e3 for outcome in outcomes if outcome.long is not None]
    return ServerRow(
        server=server, load={**dataclasses.asdict(load), "api_key": ""}, test_time=now,
        n_requests=len(outcomes) * load.clients * load.requests, n_answers=len(answers),
        n_tokens=sum(outcome.tokens for outcome in outcomes), median_ts=middle, q1_ts=q1, q3_ts=q3,
        noisy=q3 - q1 > NOISY * middle, ratio=median(ratios) if ratios else 0.0, ttft_ms=ttft_ms(answers),
        itl_ms=itl_ms(answers), n_prompt=sum(answer.n_prompt for answer in answers),
        n_cached=sum(answer.n_cached for answer in answers),
        long_ms=median(long) if long else 0.0,
        errors=dict(sum((outcome.errors for outcome in outcomes), Counter())), samples_ts=tuple(rates),
    )  # fmt: skip


def _lengths(row: ServerRow) -> str:
    """Tokens of a prompt and of an answer, means."""
    return f"{row.n_prompt // (row.n_answers or 1)} / {row.n_tokens // (row.n_answers or 1)}"


def _errors(row: ServerRow) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in row.errors.items())


_COLUMNS: tuple[tuple[str, int, Callable[[ServerRow], str]], ...] = (
    ("server", -26, lambda row: printable(row.server)),
    ("clients", 7, lambda row: str(row.load["clients"])),
    ("answers", 9, lambda row: f"{row.n_answers} of {row.n_requests}"),
    ("in / out", 11, _lengths),
    ("t/s", 18, speed),
    ("ratio", 5, lambda row: f"{row.ratio:.2f}"),
    ("TTFT ms p50 / p95 / p99", 26, lambda row: three(row.ttft_ms)),
    ("ITL ms p50 / p95 / p99", 24, lambda row: three(row.itl_ms)),
    ("found", 5, lambda row: f"{row.n_cached / row.n_prompt:.0%}" if row.n_prompt else ""),
    ("long ms", 7, lambda row: f"{row.long_ms:.0f}" if row.long_ms else ""),
    ("errors", -10, _errors),
)  # fmt: skip


def markdown(rows: Iterable[ServerRow]) -> Iterator[str]:
    """One line for each row once it is measured."""
    return table(_COLUMNS, rows)


FORMATS: dict[str, Callable[[Iterable[ServerRow]], Iterator[str]]] = {"md": markdown, "json": as_json}
