"""A simulated replica plans the steps that the real engine plans; many at once have the same result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import graphml
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.plans.step_plan import StepPlan
from graphml.simulation import Arrival, CostModel, Simulation, Traffic, arrivals
from graphml.simulation.simulated_replica import SimulatedAnswer, SimulatedReplica
from graphml.simulation.simulation_report import Gaps
from tests.stories import STORIES

COST = CostModel(((1, 0.004), (64, 0.02), (512, 0.15)), 0.0002, 1e-6, 2e-7, 1024, 256, 8)
UNBOUNDED_S = 1e6
"""A target that no step exceeds: rows of a step do then not depend on the machine's speed."""


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64, kv="f32") as model:
        yield model


SHARED = 70
LOADS = {
    "short": [Arrival(0, 20, 9), Arrival(0, 12, 30), Arrival(0, 5, 2)],
    "more than slots": [Arrival(0, 10 + 7 * i, 5 + i) for i in range(11)],
    "longer than a step": [Arrival(0, 150, 20), Arrival(0, 90, 8), Arrival(0, 3, 40), Arrival(0, 1, 1)],
    "a shared beginning": [Arrival(0, SHARED + 15 + i, 6, "a", SHARED) for i in range(6)],
    "too few blocks": [Arrival(0, 60, 60) for _ in range(5)],
}


@pytest.mark.parametrize("load", LOADS)
def test_steps_are_those_of_the_engine(load: str, model: graphml.Model) -> None:
    """Rows and who has them, step by step; the requests all wait when the first step is planned."""
    n_ctx, slots = 256, 4
    few = load == "too few blocks"
    memory = 9 * BLOCK_SIZE * _cell_bytes(model) if few else None
    with model.engine(memory, slots, 1e3 * UNBOUNDED_S, n_ctx=n_ctx) as engine:
        scheduler = engine._loop.scheduler
        cost = CostModel(
            COST.rows_s, 0, 0, 0, engine.n_ctx, scheduler.pool.n_blocks, slots, 64, model.executor.max_chunk,
            UNBOUNDED_S,
        )  # fmt: skip
        assert not few or scheduler.pool.n_blocks < 5 * 4
        answers = [SimulatedAnswer(arrival, 100 + i, 7) for i, arrival in enumerate(LOADS[load])]
        scheduler.admission.held_back = lambda sequence: True
        handles = [
            engine.submit(answer.ids().tolist(), max_tokens=answer.arrival.n_answer, temperature=0)
            for answer in answers
        ]
        with engine.timeline() as timeline:
            scheduler.admission.held_back = lambda sequence: False
            engine._loop.wake()
            results = [handle.result() for handle in handles]
            assert [len(result.ids) for result in results] == [answer.arrival.n_answer for answer in answers]
            real = [
                sorted((rows.sequence, rows.start, rows.count, rows.samples) for rows in step.rows)
                for step in timeline.steps
                if step.rows
            ]
    replica = SimulatedReplica("r", cost, Gaps(), at_once=False)
    plans = recorded(replica)
    replica.scheduler.admission.held_back = lambda sequence: True
    for answer in answers:
        assert replica.submit(answer, 0.0)
    replica.scheduler.admission.held_back = lambda sequence: False
    replica._begin(0.0)
    ended = 0
    while ended < len(answers):
        ended += len(replica.step())
    simulated = [
        sorted((rows.sequence.order, rows.start, rows.count, rows.samples) for rows in plan.rows)
        for plan in plans
    ]
    assert simulated == real
    assert replica.n_steps == len(real)


def _cell_bytes(model: graphml.Model) -> int:
    from graphml.runtime.programs.memory_needed import state_bytes

    executor = model.executor
    return state_bytes(executor, {"S": 4, "C": 1}) - state_bytes(executor, {"S": 4, "C": 0})


def recorded(replica: SimulatedReplica) -> list[StepPlan]:
    """The plans of its steps, from now on."""
    plans: list[StepPlan] = []
    schedule = replica.scheduler.schedule

    def schedule_and_keep(budget: int) -> StepPlan | None:
        plan = schedule(budget)
        if plan is not None and plan.rows:
            plans.append(plan)
        return plan

    replica.scheduler.schedule = schedule_and_keep  # type: ignore[method-assign]
    return plans


@pytest.mark.parametrize("parallel", [4, 24])
@pytest.mark.parametrize("n_blocks", [32, 120, 800])
@pytest.mark.parametrize("rate", [1, 6])
def test_many_steps_at_once_are_the_same_steps(parallel: int, n_blocks: int, rate: int) -> None:
    cost = CostModel(COST.rows_s, 0.0002, 1e-6, 2e-7, 1024, n_blocks, parallel)
    trace = arrivals(Traffic(rate, 30, "bursty", 150, 90, 0.8, 0.5, 3, 100), 3)
    runs = [Simulation(cost, trace, 2, at_once=at_once) for at_once in (True, False)]
    reports = [run.run().as_dict() for run in runs]
    for at_once, single in zip(*(run.answers for run in runs), strict=True):
        assert (at_once.n_tokens, at_once.n_cached) == (single.n_tokens, single.n_cached)
        assert at_once.first_s == pytest.approx(single.first_s, abs=1e-6)
        assert at_once.latest_s == pytest.approx(single.latest_s, abs=1e-6)
    for name in ("answered", "tokens", "hit_tokens", "preempted"):
        assert reports[0][name] == reports[1][name], name
    for name in ("itl_p50_ms", "itl_p99_ms", "busy"):
        assert reports[0][name] == pytest.approx(reports[1][name], rel=0.01), name
    if n_blocks == 32 and rate == 6:
        assert reports[0]["preempted"]  # or memory is never short


def test_one_slot_is_a_queue_whose_mean_wait_is_known() -> None:
    """M/D/1: equal service times s at load r wait s r / (2 (1 - r)) on average (Pollaczek and Khinchine)."""
    step_s, n_answer = 0.01, 20
    cost = CostModel(((1, step_s), (512, step_s)), 0, 0, 0, 128, 4, 1)
    service_s, load = step_s * n_answer, 0.7
    trace = arrivals(Traffic(load / service_s, 40_000, "poisson", 8, n_answer), 5)
    run = Simulation(cost, trace, 1)
    run.run()
    waits = np.array([answer.first_s - answer.arrival.at_s - step_s for answer in run.answers])
    assert waits.min() > -1e-9
    # Someone who comes during a step waits for its end, which is in the service times.
    assert waits.mean() == pytest.approx(service_s * load / (2 * (1 - load)), rel=0.04)
    assert run.answers[-1].latest_s - run.answers[-1].first_s == pytest.approx(service_s - step_s)
