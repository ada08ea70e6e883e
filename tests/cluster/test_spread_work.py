"""Work that is spread over a cluster's nodes: the same numbers as in one process, whichever worker ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.api.model import Model
from graphml.api.perplexity import perplexity
from graphml.cluster import EnginesOptions
from graphml.cluster.ray_engines import ray
from graphml.cluster.spread_work import spread
from graphml.errors import BackendError
from graphml.workshop.chunk_work import (
    Chunk,
    chunks_of,
    scored_chunk,
    spread_importance,
    spread_perplexity,
)
from graphml.workshop.importance import importance
from graphml.workshop.importance_file import read_importance
from tests.cli.test_commands import graphml_command
from tests.cluster.ray_nodes import RayNodes
from tests.stories import STORIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")
TEXT = "Once upon a time there was a little girl who found a shiny stone in the park. " * 12


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(Path("/tmp") / f"graphml-spread-{os.getpid()}", 2)  # paths of sockets must be short
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def stories() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, deterministic=True) as model:
        yield model


def test_numbers_are_those_of_one_process(nodes: RayNodes, stories: Model) -> None:
    ids = stories.encode(TEXT)
    there = partial(spread, stories, EnginesOptions(nodes.address))
    *_, alone = importance(stories, ids, 24)
    *_, seen = spread_importance(there, ids, 24, len(ids) // 24, None, False)
    assert seen.n_chunks == alone.n_chunks > 4
    for name, sums in alone.sums.items():
        assert (seen.sums[name] == sums).all()
        assert (seen.counts[name] == alone.counts[name]).all()
    estimates = list(spread_perplexity(there, stories, ids, 24, None, None))
    assert estimates == list(perplexity(stories.session(24), ids, 24))
    assert not ray.is_initialized()


def test_a_worker_that_is_killed_is_started_again(nodes: RayNodes, stories: Model) -> None:
    ids = stories.encode(TEXT)
    tasks = chunks_of(ids, 16, 0, len(ids) // 16, None)
    results, killed = [], list[int]()
    for losses in spread(stories, EnginesOptions(nodes.address), scored_chunk, tasks):
        results.append(losses)
        if not killed:
            killed.append(min(nodes.engines("ray::_Worker")))
            os.kill(killed[0], signal.SIGKILL)
    assert killed
    wanted = [scored_chunk(stories, task) for task in tasks]
    assert all((a == b).all() for a, b in zip(results, wanted, strict=True))
    assert nodes.engines("ray::_Worker") == []


def test_work_that_fails_says_which_part(nodes: RayNodes, stories: Model) -> None:
    tasks = chunks_of(stories.encode(TEXT), 16, 0, 5, None)
    tasks[2] = Chunk((stories.n_vocab,) * 16, None)
    with pytest.raises(BackendError, match=r"--ray: part 3: ids: wanted ids from 0"):
        list(spread(stories, EnginesOptions(nodes.address), scored_chunk, tasks))


def test_the_command(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    common: list[object] = [
        "imatrix",
        STORIES,
        "-f",
        tmp_path / "text.txt",
        "-c",
        24,
        "-t",
        1,
        "--backend",
        "cpu",
    ]
    graphml_command(*common, "-o", tmp_path / "here.gguf", "--deterministic")
    graphml_command(*common, "-o", tmp_path / "there.gguf", "--deterministic", "--ray", nodes.address)
    here, there = (read_importance(tmp_path / f"{name}.gguf") for name in ("here", "there"))
    assert here.n_chunks == there.n_chunks
    assert all(np.array_equal(here.sums[name], there.sums[name]) for name in here.sums)
    common[0] = "perplexity"
    said = [
        graphml_command(*common, "--deterministic", *more).stdout for more in ([], ["--ray", nodes.address])
    ]
    assert said[0] == said[1]
    common[0] = "imatrix"
    failed = graphml_command(*common, "-o", tmp_path / "x.gguf", "--engines", 2, code=2)
    assert "--engines: wanted --ray ADDRESS with it" in failed.stderr
