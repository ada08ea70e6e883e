"""A server of a tiny model in a thread of the test's process, and its address."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

import graphml
from graphml.api.mcp_servers import McpServers
from graphml.server.access.connections import uvicorn_config
from graphml.server.access.open_connections import OpenConnections
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import Service, SharedParts
from graphml.server.observing.request_log import Ended
from graphml.server.options.model_sources import LoadableModel
from graphml.server.options.server_options import ServerOptions
from graphml.server.server_app import server_app
from tests.server.served_app import served_config


@dataclass
class Running:
    """A server that runs: its service, its address and a client of it."""

    models: ServedModels
    address: str
    http: httpx2.Client

    @property
    def service(self) -> Service:
        """Of a model that is loaded."""
        service = self.models.known(None)
        assert isinstance(service, Service)
        return service

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        return self.http.post(path, json=body, **more)

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The data of a stream's events, without its end mark."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def at_rest(self, seconds: float = 10.0) -> bool:
        """Whether nothing runs, waits or holds a block, soon."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = self.service.access.stats()
            assert stats is not None
            if not (stats.running or stats.waiting or stats.blocks_used or self.service.access.active):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def running(
    options: ServerOptions,
    model: graphml.Model | None,
    load: Callable[[Path], graphml.Model] | None = None,
    listeners: Sequence[Ended] = (),
    mcp: McpServers | None = None,
    sources: Callable[[], Mapping[str, LoadableModel]] = dict,
    budget: int | None = None,
    connections: OpenConnections | None = None,
) -> Iterator[Running]:
    """load: opens the model again after it slept. sources: of further models. connections: of it."""
    shared = SharedParts(options)
    service = None if model is None else Service(model, options, shared)

    again: dict[str, LoadableModel] = {}
    if service is not None and load is not None:
        path = service.model.path
        again[service.name] = LoadableModel(options, lambda: path, load)
    models = ServedModels(shared, lambda: {**again, **sources()}, service, budget)
    del service  # which may be closed and opened again
    try:
        with (
            served_config(
                uvicorn_config(server_app(models, listeners, mcp), options, connections), connections
            ) as address,
            # Plain HTTP: no certificates are read, which takes 0.06 s.
            httpx2.Client(base_url=address, timeout=60, verify=False) as http,
        ):
            yield Running(models, address, http)
    finally:
        for other in list(shared.services):
            other.access.close()
