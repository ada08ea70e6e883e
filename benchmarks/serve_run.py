"""Runs the cases of arrivals: measures each in rounds, sums a case up in a row, and formats the rows.

Knows loads and rows; `serving` measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import graphml
from benchmarks.serving import TARGET_ITL_MS, WARM_UP, Served, check, serve
from benchmarks.suite_run import Models
from benchmarks.suites import ServeCase
from graphml.api.model import Model
from graphml.backend import Progress, no_progress
from graphml.bench.describe import Environment, describe_file
from graphml.bench.latencies import itl_ms, three, ttft_ms
from graphml.bench.measure import WORKING
from graphml.bench.result_rows import NOISY, quartiles
from graphml.bench.written_rows import as_json, speed, table
from graphml.inspect.dumps.node_names import printable


@dataclass(frozen=True)
class ServeRow:
    """A case on one number of threads. `load`, `model` and `environment` are as they were measured.

    samples_ts: tokens per second of the clients together, of each round; median_ts, q1_ts, q3_ts: of those.
    ttft_ms, itl_ms: percentiles (p50, p95, p99) over the requests, and over the gaps between the tokens, of
    all rounds together; samples_ttft_ms, samples_itl_ms: the same of each round. long_ttft_ms: of the long
    prompts that were answered, n_long_answered of n_long_sent. n_cached: ids of prompts that blocks held, of
    n_prompts. computed: the part of 1 of the time in which steps were computed; rows_per_step: a mean.
    """

    suite_case: str
    test_time: str
    engine_version: str
    backend: str
    n_threads: int
    target_itl_ms: float
    load: dict[str, Any]
    model: dict[str, Any]
    environment: dict[str, Any]
    n_requests: int
    median_ts: float
    q1_ts: float
    q3_ts: float
    noisy: bool
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    long_ttft_ms: dict[str, float]
    n_long_sent: int
    n_long_answered: int
    n_prompts: int
    n_cached: int
    n_preempted: int
    rows_per_step: float
    computed: float
    samples_ts: tuple[float, ...]
    samples_ttft_ms: tuple[dict[str, float], ...]
    samples_itl_ms: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class ServeJob:
    """What cases have in common. repetitions: in place of the cases' own. warm: run a little load first."""

    backend: str
    environment: Environment
    repetitions: int | None = None
    warm: bool = True
    arch: str = ""


def run_loads(
    cases: Sequence[ServeCase],
    threads: Sequence[int],
    models: Models,
    job: ServeJob,
    progress: Progress = no_progress,
) -> Iterator[ServeRow]:
    """Measure the cases with each number of threads, in order. models: shape and type -> a model's path."""
    arch = Path(job.arch) if job.arch else None
    for count in threads:
        for wanted, group in groupby(cases, lambda case: (case.shape, case.type)):
            with graphml.load(Path(models(*wanted)), job.backend, count, kv="f16", arch=arch) as model:
                for case in group:
                    check(model, case.load)
                    yield _measured(model, case, count, job, progress)


def _measured(model: Model, case: ServeCase, threads: int, job: ServeJob, progress: Progress) -> ServeRow:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if job.warm:
        serve(model, replace(case.load, seed=case.load.seed + 1, **WARM_UP))
    rounds: list[Served] = []
    count = case.repetitions if job.repetitions is None else job.repetitions
    for done in range(count):
        progress(WORKING, done, count)
        rounds.append(serve(model, case.load))
    progress(WORKING, count, count)
    rates = [one.tokens_per_s for one in rounds]
    q1, median, q3 = quartiles(rates)
    answers = [one for of in rounds for one in of.answers]
    return ServeRow(
        suite_case=case.name, test_time=now, engine_version=f"graphml {graphml.__version__}",
        backend=job.backend, n_threads=threads, target_itl_ms=TARGET_ITL_MS,
        load=dataclasses.asdict(case.load),
        model={"file": model.path.name, **describe_file(model.executor.file)},
        environment=dataclasses.asdict(job.environment), n_requests=len(answers), median_ts=median, q1_ts=q1,
        q3_ts=q3, noisy=q3 - q1 > NOISY * median, ttft_ms=ttft_ms(answers), itl_ms=itl_ms(answers),
        long_ttft_ms=ttft_ms([one for of in rounds for one in of.long]),
        n_long_sent=sum(of.n_long_sent for of in rounds), n_long_answered=sum(len(of.long) for of in rounds),
        n_prompts=sum(one.n_prompt for one in answers), n_cached=sum(one.n_cached for one in answers),
        n_preempted=sum(of.n_preempted for of in rounds),
        rows_per_step=sum(of.n_rows for of in rounds) / sum(of.n_steps for of in rounds),
        computed=sum(of.computed_s for of in rounds) / sum(of.seconds for of in rounds),
        samples_ts=tuple(rates), samples_ttft_ms=tuple(ttft_ms(of.answers) for of in rounds),
        samples_itl_ms=tuple(itl_ms(of.answers) for of in rounds),
    )  # fmt: skip


_COLUMNS: tuple[tuple[str, int, Callable[[ServeRow], str]], ...] = (
    ("case", -26, lambda row: row.suite_case),
    ("threads", 7, lambda row: str(row.n_threads)),
    ("requests", 8, lambda row: str(row.n_requests)),
    ("t/s", 18, speed),
    ("TTFT ms p50 / p95 / p99", 28, lambda row: three(row.ttft_ms)),
    ("ITL ms p50 / p95 / p99", 24, lambda row: three(row.itl_ms)),
    ("found", 5, lambda row: f"{row.n_cached / row.n_prompts:.0%}"),
    ("rows a step", 11, lambda row: f"{row.rows_per_step:.1f}"),
    ("computed", 8, lambda row: f"{row.computed:.0%}"),
    (
        "long prompts",
        12,
        lambda row: f"{row.n_long_answered} of {row.n_long_sent}" if row.n_long_sent else "",
    ),
    ("their TTFT ms p50", 17, lambda row: f"{row.long_ttft_ms['p50']:.0f}" if row.long_ttft_ms else ""),
)


def markdown(found: Iterable[ServeRow]) -> Iterator[str]:
    """One line for each case once it is measured; then the machine."""
    return table(_COLUMNS, found, _machine)


def _machine(row: ServeRow) -> str:
    of = row.environment
    version = of["build_commit"] or row.engine_version
    return (
        f"{printable(str(row.model['model_type']))}; build: {version}; {printable(of['cpu_info'])}; "
        f"load {of['load_average']:.1f} at the beginning\n"
    )


FORMATS: dict[str, Callable[[Iterable[ServeRow]], Iterator[str]]] = {"md": markdown, "json": as_json}
