"""One model and one server of it for all tests of this folder that change neither."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graphml
from graphml.server.server_options import ServerOptions
from tests.server.running_server import STORIES, Running, running


@pytest.fixture(scope="session")
def stories() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64) as model:
        yield model


@pytest.fixture(scope="session")
def server(stories: graphml.Model) -> Iterator[Running]:
    options = ServerOptions(parallel=4, n_ctx=512, metrics=True, aliases=("stories",))
    with running(options, stories) as found:
        yield found
