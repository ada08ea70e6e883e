"""Work on a model that is cut in tasks: done by actors on a cluster's nodes, its results in the tasks' order.

A task whose actor dies is done again. Knows Ray and models; nothing of what a task is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.cluster.cluster_options import EnginesOptions
from graphml.cluster.engine_places import engine_places
from graphml.cluster.node_check import Wanted, prepared
from graphml.cluster.ray_cluster import RayCluster, described
from graphml.errors import BackendError
from graphml.runtime.programs.load_options import LoadOptions

DEATHS = 3
"""Actors that a task may end before the work fails: it may be what ends them."""
AHEAD = 2
"""Tasks of an actor at once: the next one is there when one ends."""
T = TypeVar("T")
R = TypeVar("R")


class _Worker:
    """An actor: a model on a node."""

    def __init__(self, wanted: Wanted, source: str, options: LoadOptions) -> None:
        self._model = load_model(prepared(wanted, source), options)

    def do(self, work: Callable[[Model, Any], Any], task: Any) -> Any:
        """A task's result."""
        return work(self._model, task)


def spread(
    model: Model, options: EnginesOptions, work: Callable[[Model, T], R], tasks: Sequence[T]
) -> Iterator[R]:
    """work(model, task) of each task, in their order, by engines on the cluster.

    work: a function of a module that is on each node. UsageError for a cluster or options with which no
    engine can run; BackendError for a task that ends its engines, or whose engine raises.
    """
    with RayCluster(options.ray or "auto") as cluster:
        there = engine_places(cluster, model, options)
        workers = [
            ray.remote(_Worker)
            .options(**place.actor_options(options.engine_gpus), max_task_retries=DEATHS)
            .remote(there.wanted, there.source.name, place.options)
            for place in there.places
        ]
        try:
            yield from _results(cluster, workers, work, tasks)
        finally:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # what has ended already
                for worker in workers:
                    ray.kill(worker)


def _results(
    cluster: RayCluster, workers: Sequence[Any], work: Callable[[Model, T], R], tasks: Sequence[T]
) -> Iterator[R]:
    free = [worker for _ in range(AHEAD) for worker in workers]
    left = iter(enumerate(tasks))
    running: dict[Any, tuple[int, Any]] = {}
    done: dict[int, R] = {}
    given_out = 0
    while True:
        while free and (task := next(left, None)) is not None:
            worker = free.pop(0)
            running[worker.do.remote(work, task[1])] = task[0], worker
        if not running:
            return
        ready, _ = ray.wait(list(running), timeout=1.0)
        if cluster.is_lost:
            raise cluster.lost()
        for reference in ready:
            number, worker = running.pop(reference)
            try:
                done[number] = cluster.get(reference)
            except ray.exceptions.RayError as error:
                raise BackendError(f"--ray: part {number + 1}: {described(error)}") from None
            free.append(worker)
        while given_out in done:
            yield done.pop(given_out)
            given_out += 1
