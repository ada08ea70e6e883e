"""Engines of a batch job on the nodes of a Ray cluster: actors that answer requests of a server's endpoints.

A request whose engine dies is asked again elsewhere; Ray starts the engine anew where a node has room.
Knows Ray, models and the server of a process; nothing of files of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.cluster.beginnings import Beginning
from graphml.cluster.cluster_options import EnginesOptions
from graphml.cluster.engine_places import engine_places
from graphml.cluster.node_check import Wanted, prepared
from graphml.cluster.prefix_routing import PrefixRouter
from graphml.cluster.ray_cluster import RayCluster, described
from graphml.errors import BackendError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.server.local_server import LocalServer
from graphml.server.options.server_options import ServerOptions
from graphml.system.closing import Closing

LOG = logging.getLogger(__name__)
DEATHS = 3
"""Engines that a request may end before it is answered with an error: it may be what ends them."""
PATIENCE_S = 300.0
"""Seconds for which a job waits when no engine is alive any more."""
POLL_S = 0.5


class _Engine:
    """An actor: a model and its server on a node. It ends with its engine, and Ray starts it again."""

    def __init__(self, wanted: Wanted, source: str, options: LoadOptions, server: ServerOptions) -> None:
        path = prepared(wanted, source)
        self._model = load_model(path, options)
        self._server = LocalServer(self._model, server)

    async def ready(self) -> None:
        """Answers as soon as requests are answered."""

    async def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """As `LocalServer.answer`."""
        answer = await self._server.answer(path, body)
        if self._server.is_dead:
            os._exit(1)
        return answer


@dataclass
class _State:
    actor: Any
    is_ready: bool = False
    n_running: int = 0
    problem: str = ""


class RayEngines(Closing):
    """Answers requests of a batch job by engines on a cluster. Model and options are those of each engine.

    UsageError for a cluster, a node or options with which no engine can run; it names the node.
    """

    def __init__(self, model: Model, server: ServerOptions, options: EnginesOptions) -> None:
        self._cluster = RayCluster(options.ray or "auto")
        self._begun = False
        self._router = PrefixRouter()
        self._watches: set[asyncio.Task[None]] = set()
        self._was_ready = False
        try:
            self._engines = self._started(model, server, options)
        except BaseException:
            self._cluster.close()
            raise

    def _started(self, model: Model, server: ServerOptions, options: EnginesOptions) -> dict[str, _State]:
        self._places = engine_places(self._cluster, model, options)
        engines = {}
        for i, place in enumerate(self._places.places):
            actor = ray.remote(_Engine).options(
                **place.actor_options(options.engine_gpus), max_task_retries=0,
                max_concurrency=server.parallel + server.limits.waiting,
            )  # fmt: skip
            engines[f"engine {i} ({place.node})"] = _State(
                actor.remote(self._places.wanted, self._places.source.name, place.options, server)
            )
        return engines

    @property
    def n_engines(self) -> int:
        """Engines that answer at once."""
        return len(self._engines)

    @property
    def is_dead(self) -> bool:
        """Whether no answers come any more."""
        return self._cluster.is_lost

    async def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and the JSON of an engine's answer; BackendError where all engines have ended."""
        if not self._begun:
            self._begun = True
            for state in self._engines.values():
                self._watch(state)
        text = Beginning.of(json.dumps(body).encode()).text
        for _ in range(DEATHS):
            name = await self._choose(text)
            state = self._engines[name]
            state.n_running += 1
            try:
                answer: tuple[int, Any] = await self._unless_lost(
                    _future(state.actor.answer.remote(path, body))
                )
                return answer
            except ray.exceptions.RayActorError:
                if state.is_ready:
                    LOG.warning("%s has ended; its requests are asked again", name)
                    state.is_ready = False
                    self._router.forget(name)
                    self._watch(state)
            except ray.exceptions.RayError as error:
                raise BackendError(f"--ray: {name}: {described(error)}") from None
            finally:
                state.n_running -= 1
        message = f"{DEATHS} engines ended while they answered this request"
        return 500, {"error": {"message": message, "code": 500}}

    async def _choose(self, text: str) -> str:
        """The engine for a request; waits until one is ready."""
        end = None
        while not (loads := {n: state.n_running for n, state in self._engines.items() if state.is_ready}):
            problems = [state.problem for state in self._engines.values()]
            if all(problems):
                raise BackendError(f"--ray: {problems[0]}")
            if self._was_ready:
                end = end or time.monotonic() + PATIENCE_S
                if time.monotonic() > end:
                    raise BackendError(f"--ray: no engine has been alive for {PATIENCE_S:.0f} s")
            await self._unless_lost(asyncio.ensure_future(asyncio.sleep(POLL_S)))
        self._was_ready = True
        return self._router.choose(text, loads)

    def _watch(self, state: _State) -> None:
        """Notice when an engine is ready, or that it never will be."""

        async def watch() -> None:
            while not state.is_ready:
                try:
                    await _future(state.actor.ready.remote())
                    state.is_ready = True
                except ray.exceptions.ActorUnavailableError:
                    await asyncio.sleep(POLL_S)
                except ray.exceptions.RayActorError as error:
                    state.problem = described(error)
                    return

        task = asyncio.ensure_future(watch())
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _unless_lost(self, call: asyncio.Future[Any]) -> Any:
        """What a call answers; the error of the lost cluster where that comes first."""
        try:
            while not (await asyncio.wait({call}, timeout=POLL_S))[0]:
                if self._cluster.is_lost:
                    raise self._cluster.lost()
        finally:
            if not call.done():
                call.cancel()
        return call.result()

    def cancel(self) -> None:
        """End all requests: what waits for them is cancelled, and engines end with `close`."""
        for task in self._watches:
            task.cancel()

    def close(self) -> None:
        """End the engines, and leave the cluster."""
        if self._cluster.is_lost:
            return  # Ray would wait for the head node
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # what has ended already
            for state in self._engines.values():
                ray.kill(state.actor)
        self._cluster.close()


def engines_on_ray(options: EnginesOptions) -> Callable[[Model, ServerOptions], RayEngines]:
    """For `batch_jobs.run(..., engines=engines_on_ray(EnginesOptions("auto")))`."""
    return lambda model, server: RayEngines(model, server, options)


def _future(reference: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(reference.future())
