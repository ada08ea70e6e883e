"""Batch jobs on a Ray cluster of several nodes: each line exactly once, whichever node or engine ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.batch_jobs import BatchDefaults, BatchJob, BatchProgress, BatchSettings, BatchSummary
from graphml.cluster import EnginesOptions, RayEngines, engines_on_ray, node_check
from graphml.cluster.ray_engines import ray
from graphml.errors import UsageError
from graphml.server.options.server_options import ServerOptions
from tests.cluster.ray_nodes import RayNodes, free_port
from tests.stories import STORIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")
SETTINGS = BatchSettings(4, 256, defaults=BatchDefaults(max_tokens=60, sampling={"temperature": 0}))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    # Sockets are in that folder, and their paths must be short.
    folder = Path("/tmp") / f"graphml-ray-{os.getpid()}"
    nodes = RayNodes(folder, 2)
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def stories() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64, deterministic=True) as model:
        yield model


def requests(folder: Path, count: int) -> Path:
    path = folder / "in.jsonl"
    rows = ({"custom_id": f"n{i}", "prompt": f"Once upon a time {i}"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(path: Path) -> dict[str, str]:
    """Text by name; a name that comes twice is an error."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}
    assert len(texts) == len(rows)
    return texts


def run(
    model: graphml.Model, path: Path, address: str, after: Callable[[BatchProgress], None] | None = None
) -> BatchSummary:
    engines = engines_on_ray(EnginesOptions(address))
    job = BatchJob(model, path, path.with_name("out.jsonl"), SETTINGS, engines=engines)
    return job.run(after or (lambda progress: None))


def test_a_cluster_answers_as_one_process_does(
    nodes: RayNodes, stories: graphml.Model, tmp_path: Path
) -> None:
    path = requests(tmp_path, 150)  # both engines are up before the end
    used: set[int] = set()
    summary = run(stories, path, nodes.address, lambda progress: used.update(nodes.engines()))
    assert len(used) == 2
    assert (summary.progress.done, summary.progress.failed) == (150, 0)
    alone = BatchJob(stories, path, tmp_path / "alone.jsonl", SETTINGS).run()
    assert answers(summary.output) == answers(alone.output)
    assert not ray.is_initialized()
    assert nodes.engines() == []


def test_an_engine_that_is_killed_is_started_again(
    nodes: RayNodes, stories: graphml.Model, tmp_path: Path
) -> None:
    path, killed = requests(tmp_path, 60), list[int]()

    def kill(progress: BatchProgress) -> None:
        if progress.done >= 4 and not killed:
            killed.append(min(nodes.engines()))
            os.kill(killed[0], signal.SIGKILL)

    summary = run(stories, path, nodes.address, kill)
    assert killed
    assert len(answers(summary.output)) == 60
    assert summary.progress.failed == 0


def test_a_node_joins_without_the_model_and_another_one_dies(
    nodes: RayNodes, stories: graphml.Model, tmp_path: Path
) -> None:
    # What nodes find: another file at the same path, which must not be taken.
    folder, cache = tmp_path / "models", tmp_path / "cache"
    folder.mkdir()
    model = folder / "stories.bin"
    model.write_bytes(STORIES.read_bytes())
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("folders cannot be hidden from a node here: unshare --mount is not permitted")
    number = nodes.add(hidden=folder, GRAPHML_CACHE=str(cache))
    path, done = requests(tmp_path, 200), list[int]()

    def kill(progress: BatchProgress) -> None:
        if progress.done >= 10 and not done and len(nodes.engines()) == 3:
            done.append(progress.done)
            nodes.kill(number)

    with graphml.load(model, "cpu", threads=1, n_batch=64, deterministic=True) as opened:
        try:
            summary = run(opened, path, nodes.address, kill)
        finally:
            nodes.kill(number)
        alone = BatchJob(opened, path, tmp_path / "alone.jsonl", SETTINGS).run()
    (copy,) = (cache / "sent").rglob("stories.bin")
    assert copy.read_bytes() == STORIES.read_bytes()
    assert done[0] < 200
    assert answers(summary.output) == answers(alone.output)


def test_what_cannot_be_is_refused_by_name(
    nodes: RayNodes, stories: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = requests(tmp_path, 1)
    with pytest.raises(UsageError, match=r"nothing listens at 127\.0\.0\.1:\d+; start one with `ray start"):
        run(stories, path, f"127.0.0.1:{free_port()}")
    for address in ("ray://127.0.0.1:10001", "nowhere", "127.0.0.1:x"):
        with pytest.raises(UsageError, match="wanted HOST:PORT"):
            run(stories, path, address)
    for options, wanted in (
        (EnginesOptions(nodes.address, engine_cpus=3), "no node of the cluster has 3 CPUs"),
        (
            EnginesOptions(nodes.address, engines=4, engine_cpus=1),
            r"wanted 4 times 1 CPUs, of a node each; [23] fit",
        ),
        # As many CPUs as there are, but no node has those of two engines.
        (
            EnginesOptions(nodes.address, engines=4, engine_cpus=0.7),
            r"wanted 4 times 0\.7 CPUs, of a node each; [23] fit",
        ),
        (
            EnginesOptions(nodes.address, engine_gpus=1),
            r"wanted [23] GPUs of the cluster; 0 of its 0 are free",
        ),
    ):
        with pytest.raises(UsageError, match=wanted):
            RayEngines(stories, ServerOptions(), options)
    for bad in ({"engines": 0}, {"engine_cpus": 0.0}, {"engine_gpus": -1.0}):
        with pytest.raises(UsageError, match="wanted"):
            EnginesOptions(nodes.address, **bad)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [path]  # no empty files of results
    monkeypatch.setattr(node_check, "code_digest", lambda: "another")
    with pytest.raises(UsageError, match=r"node .*: wanted graphml of the same commit \(another\)"):
        run(stories, path, nodes.address)
    assert not ray.is_initialized()


def test_a_request_that_ends_engines_fails_alone(nodes: RayNodes, stories: graphml.Model) -> None:
    options = EnginesOptions(nodes.address, engines=2, engine_cpus=0.5)
    with RayEngines(stories, ServerOptions(parallel=2), options) as engines:

        class Ends:
            """An engine that a request ends."""

            async def ready(self) -> None:
                """It starts."""

            async def answer(self, path: str, body: Any) -> None:
                """It ends."""
                os._exit(1)

        ending = ray.remote(Ends).options(num_cpus=0, max_restarts=-1)
        for state in engines._engines.values():
            ray.kill(state.actor)
            state.actor = ending.remote()
        status, body = asyncio.run(engines.answer("/v1/completions", {"prompt": "a"}))
    assert status == 500
    assert body["error"]["message"] == "3 engines ended while they answered this request"


def test_the_command_goes_on_alone_when_the_head_node_dies(stories: graphml.Model, tmp_path: Path) -> None:
    path, output = requests(tmp_path, 300), tmp_path / "out.jsonl"
    nodes = RayNodes(Path("/tmp") / f"graphml-ray-head-{os.getpid()}", 1)
    command = [sys.executable, "-m", "graphml", "batch", str(STORIES), str(path), "-o", str(output),
               "-np", "2", "-n", "60", "--temp", "0", "-c", "128", "--json"]  # fmt: skip
    try:
        process = subprocess.Popen(
            [*command, "--ray", nodes.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None and (not output.exists() or output.read_bytes().count(b"\n") < 5):
            pass
        assert process.poll() is None, process.communicate()
        nodes.kill(0)
        out, err = process.communicate(timeout=120)
    finally:
        nodes.close()
    assert process.returncode == 1
    assert out == ""
    assert "does not answer any more" in err
    kept = output.read_bytes().count(b"\n")
    assert 5 <= kept < 300
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["kept"] >= kept
    assert len(answers(output)) == 300
