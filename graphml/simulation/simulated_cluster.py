"""Many replicas and a front: arrivals are routed, replicas die, start again, come and go with the load.

What the front, the router and Ray Serve do is what docs/cluster.md says of them. Knows replicas by their
times; nothing of steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from graphml.cluster.autoscaling import DOWN_S, INTERVAL_S, LOOK_BACK_S, UP_S, replicas_wanted
from graphml.errors import UsageError
from graphml.server.options.server_options import RequestLimits
from graphml.simulation.arrivals import Arrival
from graphml.simulation.cost_model import CostModel
from graphml.simulation.replica_choices import choice_of
from graphml.simulation.simulated_replica import SimulatedAnswer, SimulatedReplica
from graphml.simulation.simulation_report import Gaps, SimulationReport

MOST_WAITING = RequestLimits().waiting
REPORT_EVERY = 4096
FIRST_ID = 1 << 24
"""Tokens of shared beginnings are from here on, those of requests below."""


@dataclass(frozen=True)
class Autoscaling:
    """Replicas from least to most, as `replicas_wanted` says at each interval.

    As Ray Serve: what is wanted must last up_s or down_s, of loads that are averaged over look_back_s.
    start_s: until a new replica answers.
    """

    least: int
    most: int
    start_s: float = 10.0
    up_s: float = UP_S
    down_s: float = DOWN_S
    interval_s: float = INTERVAL_S
    look_back_s: float = LOOK_BACK_S

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"replicas: wanted N or LEAST-MOST from 1 on; got {self.least}-{self.most}")
        _check_seconds("start_s", self.start_s, 0)
        for name in ("up_s", "down_s", "interval_s", "look_back_s"):
            _check_seconds(name, getattr(self, name), 1e-3)


@dataclass(frozen=True)
class Failures:
    """Each replica dies once in every_s on average, and runs again after restart_s.

    at: deaths besides, as (second, number of the replica).

    again: whether clients ask again for answers that had begun; others are asked elsewhere anyway.
    """

    every_s: float = math.inf
    restart_s: float = 30.0
    at: tuple[tuple[float, int], ...] = ()
    again: bool = False

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise UsageError(f"every_s: wanted seconds above 0; got {self.every_s!r}")
        _check_seconds("restart_s", self.restart_s, 0)


def _check_seconds(name: str, value: Any, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise UsageError(f"{name}: wanted seconds from {least:g} on; got {value!r}")


@dataclass
class _ReplicaPlace:
    """Where a replica runs: a name that outlives it. since_s: when it was begun; below 0: it does not run."""

    name: str
    replica: SimulatedReplica | None = None
    since_s: float = -1.0
    draining: bool = False
    scheduled_s: float = math.inf
    life: int = 0


@dataclass
class _Totals:
    counts: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    replica_s: float = 0.0
    busy_s: float = 0.0
    most: int = 0
    readers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


class Simulation:
    """Replicas by a cost model, which answer a trace.

    replicas: how many, or `Autoscaling`; routing: one of `CHOICES`. answers: of each request, once
    `run` has ended. at_once: as of `SimulatedReplica`; the result is the same.
    """

    def __init__(
        self,
        cost: CostModel,
        trace: Sequence[Arrival],
        replicas: int | Autoscaling = 1,
        routing: str = "prefix",
        failures: Failures | None = None,
        seed: int = 0,
        at_once: bool = True,
    ) -> None:
        self._cost, self._trace, self._at_once = cost, trace, at_once
        count = replicas.least if isinstance(replicas, Autoscaling) else replicas
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 100_000:
            raise UsageError(f"replicas: wanted a number from 1 to 100000; got {count!r}")
        if len(trace) >= FIRST_ID:
            raise UsageError(f"trace: wanted at most {FIRST_ID - 1} requests; got {len(trace)}")
        self._scaling = replicas if isinstance(replicas, Autoscaling) else None
        self._choice, self._failures = choice_of(routing), failures or Failures()
        for second, number in self._failures.at:
            _check_seconds("at", second, 0)
            if not 0 <= number < count:
                raise UsageError(f"at: wanted the number of a replica, 0 to {count - 1}; got {number}")
        self._numbers = np.random.default_rng([seed, 1])
        self._gaps, self._totals = Gaps(), _Totals()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._names = itertools.count(), itertools.count()
        self._now = 0.0
        self._places: dict[str, _ReplicaPlace] = {}
        self._loads: dict[str, int] = {}
        self._queued: deque[SimulatedAnswer] = deque()
        self._left = len(trace)
        self._seen: deque[tuple[float, int, float]] = deque()
        self._change, self._change_s = 0, 0.0
        prefixes = dict.fromkeys(arrival.prefix for arrival in trace)
        ids = {prefix: FIRST_ID + i for i, prefix in enumerate(prefixes)}
        self.answers = [SimulatedAnswer(arrival, i, ids[arrival.prefix]) for i, arrival in enumerate(trace)]
        for _ in range(count):
            self._start(0.0)
        for second, number in self._failures.at:
            self._at(second, partial(self._die, self._places[f"replica {number}"]))

    def run(self, report: Callable[[int, int], None] = lambda done, total: None) -> SimulationReport:
        """Run until each request has ended. report: called with how many have, and of how many."""
        waiting = iter(self.answers)
        coming = next(waiting, None)
        if self._scaling is not None:
            self._at(self._scaling.interval_s, self._scale)
        total, said = self._left, 0
        while self._left:
            came_s = math.inf if coming is None else coming.arrival.at_s + self._cost.request_s
            if coming is not None and (not self._events or came_s <= self._events[0][0]):
                self._now = came_s
                self._ask(coming)
                coming = next(waiting, None)
            else:
                self._now, _, event = heapq.heappop(self._events)
                event()
            if total - self._left - said >= REPORT_EVERY:
                said = total - self._left
                report(said, total)
        report(total, total)
        return self._reported()

    def _at(self, second: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (second, next(self._order), event))

    # Requests

    def _ask(self, answer: SimulatedAnswer) -> None:
        """A request is at the front; it goes to a replica, if there is any."""
        if not self._loads:
            self._queued.append(answer)
            return
        name = self._choice.choose(answer.arrival, answer.number, self._loads)
        place = self._places[name]
        assert place.replica is not None
        answer.n_asked += 1
        if len(place.replica.answers) >= MOST_WAITING or not place.replica.submit(answer, self._now):
            self._end(answer, "refused")
            return
        self._loads[name] += 1
        if answer.arrival.prefix:
            self._totals.readers[answer.arrival.prefix].add(name)
        self._follow(place)

    def _end(self, answer: SimulatedAnswer, how: str) -> None:
        self._left -= 1
        self._totals.counts[how] += 1
        self._totals.counts["tokens"] += answer.n_tokens
        if how == "answered":
            self._totals.ttft_s.append(answer.first_s - answer.arrival.at_s)
            self._totals.counts["prompt_tokens"] += answer.arrival.n_prompt
            self._totals.counts["hit_tokens"] += answer.n_cached

    def _follow(self, place: _ReplicaPlace) -> None:
        """Have an event at the end of a replica's step."""
        replica = place.replica
        if replica is not None and replica.next_s != place.scheduled_s:
            place.scheduled_s, life, when = replica.next_s, place.life, replica.next_s
            if when < math.inf:
                self._at(when, lambda: self._step(place, life, when))

    def _step(self, place: _ReplicaPlace, life: int, when: float) -> None:
        replica = place.replica
        if replica is None or place.life != life or place.scheduled_s != when:
            return  # it has died, or its step ends at another time by now
        for answer in replica.step():
            if place.name in self._loads:
                self._loads[place.name] -= 1
            self._end(answer, "answered")
        if place.draining and not replica.answers:
            self._stop(place)
        else:
            self._follow(place)

    # Replicas

    def _start(self, after_s: float) -> None:
        place = _ReplicaPlace(f"replica {next(self._names)}", since_s=self._now)
        self._places[place.name] = place
        self._wait_for(place, after_s)

    def _wait_for(self, place: _ReplicaPlace, after_s: float) -> None:
        """It runs from now on, and answers after so long."""
        place.since_s, place.life = self._now, place.life + 1
        life = place.life
        running = sum(other.since_s >= 0 for other in self._places.values())
        self._totals.most = max(self._totals.most, running)
        if after_s:
            self._at(self._now + after_s, lambda: self._ready(place, life))
        else:
            self._ready(place, life)

    def _ready(self, place: _ReplicaPlace, life: int) -> None:
        if place.life != life or place.since_s < 0:
            return
        place.replica, place.scheduled_s = (
            SimulatedReplica(place.name, self._cost, self._gaps, self._at_once),
            math.inf,
        )
        self._loads[place.name] = 0
        if self._failures.every_s < math.inf:
            after = float(self._numbers.exponential(self._failures.every_s))
            self._at(self._now + after, lambda: self._die(place, life))
        queued, self._queued = self._queued, deque()
        for answer in queued:
            self._ask(answer)

    def _stop(self, place: _ReplicaPlace) -> None:
        """It runs no more: what it was is counted."""
        self._totals.replica_s += self._now - place.since_s
        if self._left:
            self._choice.forget(place.name)
        self._loads.pop(place.name, None)
        replica, place.replica, place.since_s = place.replica, None, -1.0
        place.life += 1
        if place.draining:
            del self._places[place.name]
        if replica is not None:
            self._totals.busy_s += replica.busy_s
            self._totals.counts["preempted"] += replica.n_preempted

    def _die(self, place: _ReplicaPlace, life: int | None = None) -> None:
        """What it had not begun to answer is asked elsewhere; other answers break off, or are asked again."""
        if place.replica is None or (life is not None and place.life != life):
            return
        self._totals.counts["deaths"] += 1
        answers = place.replica.stop(self._now)
        drains = place.draining
        self._stop(place)
        if not drains:
            self._wait_for(place, self._failures.restart_s)
        for answer in answers:
            if answer.n_tokens and not self._failures.again:
                self._end(answer, "broken")
                continue
            self._totals.counts["asked_again"] += 1
            self._totals.counts["tokens"] += answer.n_tokens
            answer.n_tokens, answer.first_s = 0, -1.0
            self._ask(answer)

    def _scale(self) -> None:
        """Have as many replicas as have been wanted for long enough."""
        scaling = self._scaling
        assert scaling is not None
        self._at(self._now + scaling.interval_s, self._scale)
        active = [place for place in self._places.values() if place.since_s >= 0 and not place.draining]
        shares = [place.replica.share_used for place in active if place.replica is not None]
        under_way = sum(self._loads.values()) + len(self._queued)
        self._seen.append((self._now, under_way, sum(shares) / max(1, len(shares))))
        while self._seen[0][0] <= self._now - scaling.look_back_s:
            self._seen.popleft()
        _, n_answers, used = np.mean(self._seen, axis=0).tolist()
        context = SimpleNamespace(
            current_num_replicas=len(active), total_num_requests=0,
            aggregated_metrics={"running": {"all": n_answers}, "blocks": {"all": used}},
            config=SimpleNamespace(target_ongoing_requests=self._cost.parallel),
            capacity_adjusted_min_replicas=scaling.least, capacity_adjusted_max_replicas=scaling.most,
        )  # fmt: skip
        wanted, _ = replicas_wanted(context)
        change = (wanted > len(active)) - (wanted < len(active))
        if change != self._change:
            self._change, self._change_s = change, self._now
        if not change or self._now - self._change_s < (scaling.up_s if change > 0 else scaling.down_s):
            return
        self._change = 0
        for _ in range(wanted - len(active)):
            self._start(scaling.start_s)
        # Those that have least to do.
        active.sort(key=lambda place: self._loads.get(place.name, -1))
        for place in active[: max(0, len(active) - wanted)]:
            place.draining = True
            self._loads.pop(place.name, None)
            if place.replica is None or not place.replica.answers:
                self._stop(place)

    def _reported(self) -> SimulationReport:
        totals, counts = self._totals, self._totals.counts
        for place in list(self._places.values()):
            if place.since_s >= 0:
                self._stop(place)
        ttft = np.percentile(totals.ttft_s, [50, 99]) * 1e3 if totals.ttft_s else (0.0, 0.0)
        begin = self._trace[0].at_s if self._trace else 0.0
        seconds = self._now - begin
        per_s = counts["tokens"] / seconds if seconds else 0.0
        readers = [len(names) for names in totals.readers.values()]
        return SimulationReport(
            requests=len(self._trace), answered=counts["answered"], broken=counts["broken"],
            refused=counts["refused"], asked_again=counts["asked_again"], seconds=seconds,
            tokens=counts["tokens"], tokens_per_s=per_s, prompt_tokens=counts["prompt_tokens"],
            hit_tokens=counts["hit_tokens"], ttft_p50_ms=float(ttft[0]), ttft_p99_ms=float(ttft[1]),
            itl_p50_ms=1e3 * self._gaps.percentile(0.5), itl_p99_ms=1e3 * self._gaps.percentile(0.99),
            replica_s=totals.replica_s, replicas_mean=totals.replica_s / self._now if self._now else 0.0,
            replicas_most=totals.most, busy=totals.busy_s / totals.replica_s if totals.replica_s else 0.0,
            preempted=counts["preempted"], deaths=counts["deaths"],
            prefix_copies=sum(readers) / len(readers) if readers else 0.0,
            front_busy=per_s * self._cost.part_s,
        )  # fmt: skip


def simulate(
    cost: CostModel,
    trace: Sequence[Arrival],
    replicas: int | Autoscaling = 1,
    routing: str = "prefix",
    failures: Failures | None = None,
    seed: int = 0,
) -> SimulationReport:
    """What a `Simulation` with these arguments says."""
    return Simulation(cost, trace, replicas, routing, failures, seed).run()
