"""Many simulated replicas: each request ends once, whatever dies; routing and scaling are the cluster's."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from graphml.errors import UsageError
from graphml.simulation import (
    Arrival,
    Autoscaling,
    CostModel,
    Failures,
    Simulation,
    SimulationReport,
    Traffic,
    arrivals,
    simulate,
)

COST = CostModel(((1, 0.004), (64, 0.02), (512, 0.15)), 0.0002, 1e-6, 2e-7, 1024, 256, 8, request_s=0.003)
TRACE = arrivals(Traffic(10, 60, "bursty", 200, 60, 0.6, 0.6, 6, 150), 2)
ROUTINGS = ("prefix", "round-robin", "least-loaded")


def ends(run: Simulation) -> Counter[str]:
    """How often each request has ended."""
    seen = Counter[str]()
    end = run._end

    def counted(answer: object, how: str) -> None:
        seen[str(id(answer))] += 1
        end(answer, how)  # type: ignore[arg-type]

    run._end = counted  # type: ignore[method-assign,assignment]
    run.run()
    return seen


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("again", [False, True])
def test_each_request_ends_once_whatever_dies(routing: str, again: bool) -> None:
    failures = Failures(25, 4, ((3.0, 0), (3.5, 1)), again)
    run = Simulation(COST, TRACE, 3, routing, failures, 7)
    counts = ends(run)
    assert len(counts) == len(TRACE)
    assert set(counts.values()) == {1}
    totals = run._totals.counts
    assert totals["deaths"] > 3
    assert totals["answered"] + totals["broken"] + totals["refused"] == len(TRACE)
    assert totals["asked_again"] > 0
    assert bool(totals["broken"]) != again
    for answer in run.answers:
        whole = answer.n_tokens == answer.arrival.n_answer
        assert whole or answer.n_tokens + answer.arrival.n_prompt >= 1023 or not again


def test_without_deaths_every_token_comes_and_none_before_its_request() -> None:
    run = Simulation(COST, TRACE, 3)
    report = run.run()
    assert (report.answered, report.broken, report.asked_again, report.deaths) == (
        report.requests - report.refused, 0, 0, 0,
    )  # fmt: skip
    assert report.tokens == sum(answer.n_tokens for answer in run.answers)
    for answer in run.answers:
        if answer.n_tokens:
            assert answer.arrival.at_s + COST.request_s < answer.first_s <= answer.latest_s
            assert answer.n_cached <= answer.arrival.n_prefix
    assert report.replica_s == pytest.approx(3 * run._now)
    assert 0 < report.busy <= 1


def test_all_replicas_dead_is_a_wait_and_no_loss() -> None:
    trace = [Arrival(0.1 * i, 50, 20) for i in range(100)]
    report = simulate(COST, trace, 2, failures=Failures(restart_s=9, at=((2, 0), (2, 1)), again=True))
    assert (report.deaths, report.answered) == (2, 100)
    assert report.ttft_p99_ms > 7_000


def test_the_same_seed_is_the_same_result_and_another_is_not() -> None:
    failures = Failures(20, 2)
    reports = [simulate(COST, TRACE, Autoscaling(1, 4), "prefix", failures, seed) for seed in (1, 1, 2)]
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]
    law = Traffic(5, 50, "diurnal", tail=1.0, share=0.5)
    assert arrivals(law, 4) == arrivals(law, 4) != arrivals(law, 5)
    code = (
        "from tests.simulation.test_simulated_cluster import *; import sys;"
        "print(simulate(COST, TRACE, Autoscaling(1, 4), 'prefix', Failures(20, 2), 1));"
        "assert 'ray' not in sys.modules"
    )
    # Texts have other hashes there.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(reports[0])


def test_prefix_affinity_finds_more_and_answers_sooner_than_turns() -> None:
    trace = arrivals(Traffic(6, 120, "poisson", 60, 20, 0.3, 1.0, 40, 600), 1)
    cost = CostModel(COST.rows_s, 0.0002, 1e-6, 2e-7, 1024, 400, 8)  # room for about twenty beginnings
    reports = {routing: simulate(cost, trace, 4, routing) for routing in ROUTINGS}
    affine, turns = reports["prefix"], reports["round-robin"]
    assert affine.hit_tokens > 1.2 * turns.hit_tokens
    assert affine.ttft_p50_ms < turns.ttft_p50_ms
    assert affine.prefix_copies < turns.prefix_copies
    assert affine.answered == turns.answered == len(trace)


def test_turns_are_turns_and_the_least_loaded_is_chosen() -> None:
    trace = [Arrival(float(i), 20, 2) for i in range(40)]
    for routing in ("round-robin", "least-loaded"):
        run = Simulation(COST, trace, 4, routing)
        run.run()
        names = [answer.replica.name for answer in run.answers if answer.replica is not None]
        assert names[:4] != names[1:5]
        assert names[:36] == names[4:]
    # While one is busy, all others go to the other one.
    run = Simulation(
        COST, [Arrival(0.0, 20, 900), *(Arrival(0.5 * i, 20, 2) for i in range(1, 8))], 2, "least-loaded"
    )
    run.run()
    assert len({answer.replica.name for answer in run.answers[1:] if answer.replica}) == 1
    long = [Arrival(0.0, 20, 900), *(Arrival(0.1 + 0.01 * i, 20, 900) for i in range(3))]
    run = Simulation(COST, long, 2, "least-loaded")
    run.run()
    assert Counter(answer.replica.name for answer in run.answers if answer.replica).most_common(1)[0][1] == 2


def scaled(trace: Sequence[Arrival], scaling: Autoscaling) -> SimulationReport:
    return simulate(COST, trace, scaling)


def test_replicas_come_with_the_load_and_go_after_it() -> None:
    busy = arrivals(Traffic(12, 120, "even", 200, 200), 1)
    trace = [
        Arrival(0.0, 20, 5),
        *(Arrival(60 + a.at_s, a.n_prompt, a.n_answer) for a in busy),
        Arrival(500.0, 20, 5),
    ]
    report = scaled(trace, Autoscaling(1, 8))
    assert 1 < report.replicas_most <= 8
    assert 1 < report.replicas_mean < report.replicas_most
    assert report.answered == len(trace)
    alone, all_day = simulate(COST, trace, 1), simulate(COST, trace, 8)
    assert alone.ttft_p99_ms > report.ttft_p99_ms > all_day.ttft_p99_ms
    assert alone.replica_s < report.replica_s < all_day.replica_s
    # What has just come for a peak answers after start_s alone.
    assert scaled(trace, Autoscaling(1, 8, start_s=40)).ttft_p99_ms > report.ttft_p99_ms


def test_what_is_too_long_or_too_much_is_refused_and_ends() -> None:
    report = simulate(COST, [Arrival(0, 1024, 5), Arrival(0, 1023, 5), Arrival(0, 1000, 500)], 1)
    assert (report.refused, report.answered) == (1, 2)
    assert report.tokens == 1 + 24  # until the context is full
    flood = [Arrival(0, 8, 2) for _ in range(1100)]
    assert simulate(COST, flood, 1).refused == 1100 - 1024
    nothing = simulate(COST, [], 2)
    assert (nothing.requests, nothing.tokens_per_s, nothing.ttft_p50_ms) == (0, 0, 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: simulate(COST, TRACE, 0), "replicas: wanted a number from 1 to 100000; got 0"),
        (lambda: simulate(COST, TRACE, True), "replicas: wanted a number"),
        (
            lambda: simulate(COST, TRACE, 1, "random"),
            "routing: wanted one of prefix, round-robin, least-loaded",
        ),
        (lambda: Autoscaling(3, 2), "replicas: wanted N or LEAST-MOST from 1 on; got 3-2"),
        (lambda: Autoscaling(1, 2, start_s=-1), "start_s: wanted seconds from 0 on; got -1"),
        (lambda: Autoscaling(1, 2, interval_s=0), "interval_s: wanted seconds from 0.001"),
        (lambda: Failures(0), "every_s: wanted seconds above 0"),
        (lambda: Failures(float("nan")), "every_s: wanted seconds above 0"),
        (lambda: Failures(restart_s=float("inf")), "restart_s: wanted seconds"),
        (
            lambda: simulate(COST, TRACE, 2, failures=Failures(at=((1, 2),))),
            "at: wanted the number of a replica",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(make: object, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        make()  # type: ignore[operator]
    assert words in str(raised.value)
