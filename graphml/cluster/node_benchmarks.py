"""A benchmark on a node of each kind of a Ray cluster: the same tests, each node alone with all of its CPUs.

Knows benchmarks as values and nodes; nothing of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from graphml.backend import Progress
from graphml.bench.describe import environment
from graphml.bench.job import Job
from graphml.bench.result_rows import ResultRow
from graphml.cluster.node_check import FileSender, Wanted, prepared, ready_nodes, wanted_files
from graphml.cluster.ray_cluster import RayCluster, RayNode, described
from graphml.errors import UsageError
from graphml.loading.open_file import open_path
from graphml.runtime.programs.load_options import LoadOptions

Names = Callable[[], str]
"""The processor's name of the machine that calls it."""


def rows_of_nodes(
    address: str, job: Job, cpu_name: Names, progress: Progress
) -> Iterator[tuple[RayNode, Iterator[ResultRow]]]:
    """Each node that is measured, and its rows as they come; the former's rows end before the next begins.

    One node of each kind: of a processor's name and a number of CPUs. A setting with 0 threads has all CPUs
    of the node. UsageError for a cluster or a node where nothing can be measured.
    """
    with RayCluster(address) as cluster:
        models = {setting.model for setting in job.settings}
        senders: dict[str, tuple[Wanted, FileSender]] = {}
        for model in sorted(models):
            with open_path(Path(model)) as file:
                wanted = wanted_files(Path(model), [Path(part) for part in file.paths], LoadOptions())
            senders[model] = wanted, FileSender(cluster, wanted.model)
        nodes = cluster.nodes
        for wanted, sender in senders.values():
            nodes = ready_nodes(cluster, nodes, wanted, sender)
        sent = {model: (wanted, sender.name) for model, (wanted, sender) in senders.items()}
        kinds = _kinds(cluster, nodes, cpu_name)
        for number, node in enumerate(kinds):
            progress("nodes", number, len(kinds))
            yield node, _rows(cluster, node, job, cpu_name, sent)


def _kinds(cluster: RayCluster, nodes: Sequence[RayNode], cpu_name: Names) -> list[RayNode]:
    """The first node of each kind."""
    task = ray.remote(cpu_name)
    calls = [task.options(num_cpus=0, scheduling_strategy=RayCluster.on(node.id)).remote() for node in nodes]
    kinds: dict[tuple[str, float], RayNode] = {}
    for node, call in zip(nodes, calls, strict=True):
        kinds.setdefault((cluster.get(call), node.cpus), node)
    return list(kinds.values())


def _rows(
    cluster: RayCluster, node: RayNode, job: Job, cpu_name: Names, sent: dict[str, tuple[Wanted, str]]
) -> Iterator[ResultRow]:
    cluster.check_free({"CPU": node.cpus})
    task: Any = ray.remote(_measured)
    options = {"num_cpus": node.cpus, "max_retries": 0, "num_returns": "streaming"}
    there = task.options(**options, scheduling_strategy=RayCluster.on(node.id))
    try:
        for reference in there.remote(job, cpu_name, sent, max(1, int(node.cpus))):
            row: ResultRow = cluster.get(reference)
            yield replace(row, node=node.name)
    except ray.exceptions.RayError as error:
        raise UsageError(f"--ray: node {node}: {described(error)}") from None


def _measured(
    job: Job, cpu_name: Names, sent: dict[str, tuple[Wanted, str]], cpus: int
) -> Iterator[ResultRow]:
    """On a node: its rows."""
    paths = {model: str(prepared(*facts)) for model, facts in sent.items()}
    settings = [
        replace(setting, model=paths[setting.model], threads=setting.threads or cpus)
        for setting in job.settings
    ]
    rows = replace(job, settings=settings, environment=environment(cpu_name())).rows()
    yield from (row for row in rows)  # Ray sends values into it, which not all iterators take
