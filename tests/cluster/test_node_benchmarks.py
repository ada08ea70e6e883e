"""Benchmarks on the nodes of a Ray cluster: one of each kind, with its own machine in the rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_nodes import RayNodes
from tests.stories import STORIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(Path("/tmp") / f"graphml-bench-{os.getpid()}", 2)
    yield nodes
    nodes.close()


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "graphml",
        "bench",
        str(STORIES),
        "-p",
        "16",
        "-n",
        "4",
        "-r",
        "1",
        *flags,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_one_node_of_each_kind_measures(nodes: RayNodes) -> None:
    done = bench("--ray", nodes.address, "-o", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    # Both nodes have one CPU of the same processor.
    assert [row["test"] for row in rows] == ["pp16", "tg4"], done.stderr
    assert {(row["n_threads"], bool(row["node"]), bool(row["cpu_info"])) for row in rows} == {(1, True, True)}
    table = bench("--ray", nodes.address)
    assert table.stdout.startswith("node ")
    assert "| pp16 |" in " ".join(table.stdout.split())


def test_an_address_without_a_cluster_is_refused() -> None:
    done = bench("--ray", "nowhere")
    assert (done.returncode, "wanted HOST:PORT" in done.stderr) == (2, True)
