"""Servers for the libraries that people build agents with, and what keeps those libraries on this machine.

A library is imported by the test that uses it, not by all processes that collect tests: seconds each.
"""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml import SamplingParams
from graphml.loading import fetch
from graphml.server.options.server_options import ServerOptions
from tests import tiny_model
from tests.server.clients.refusing_server import Refusing, refusing
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running, running

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "HF_HUB_DISABLE_TELEMETRY": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The test asks this machine alone, and leaves no open socket to the tests after it."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", b"127.0.0.1", None):
            asked.append(str(host))
            raise socket.gaierror(f"{host} is not asked for in tests")
        return resolve(host, *rest, **more)

    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert not asked


@pytest.fixture(scope="session")
def _wished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wishes]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=16384)
    with graphml.load(path, "cpu", threads=1, n_batch=256) as model:
        wishes = Wishes(model)
        options = ServerOptions(parallel=2, n_ctx=16384, params=SamplingParams(function=wishes))
        with running(options, model) as found:
            wishes.server = found
            yield wishes


@pytest.fixture
def wished(_wished: Wishes) -> Wishes:
    """A server of a tiny model that says what a test wishes, as far as a grammar lets it."""
    _wished.forget()
    return _wished


@pytest.fixture
def refused(wished: Wishes) -> Iterator[Refusing]:
    """The same behind one that answers with errors first."""
    with refusing(wished.address) as found:
        yield found


@pytest.fixture(scope="session")
def smollm() -> Iterator[Running]:
    """A server of the README's model."""
    try:
        path = fetch.fetch("smollm2")
    except graphml.DownloadError as error:
        pytest.skip(f"offline: {error}")
    with (
        graphml.load(path, "cpu", threads=1) as model,
        running(ServerOptions(parallel=2, n_ctx=4096), model) as found,
    ):
        yield found
