"""Models and a server of each for all tests of this folder that change neither."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from tests import tiny_model
from tests.server.running_server import Running, running
from tests.stories import STORIES


@pytest.fixture(scope="session")
def stories() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64) as model:
        yield model


@pytest.fixture(scope="session")
def server(stories: graphml.Model) -> Iterator[Running]:
    options = ServerOptions(parallel=4, n_ctx=512, metrics=True, aliases=("stories",))
    with running(options, stories) as found:
        yield found


@pytest.fixture(scope="session")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model that fills in the middle."""
    path = tiny_model.write(
        tmp_path_factory.mktemp("coder") / "coder.gguf",
        more=["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    )
    with (
        graphml.load(path, backend="reference", n_batch=64, kv="f32") as model,
        running(ServerOptions(parallel=2, n_ctx=96), model) as found,
    ):
        yield found
