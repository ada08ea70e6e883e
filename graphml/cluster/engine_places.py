"""Where engines of a model run on a cluster: nodes that have it, are ready for it, and have room.

Knows Ray, nodes and models; nothing of what the engines do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphml.api.model import Model
from graphml.cluster.cluster_options import EnginesOptions
from graphml.cluster.node_check import FileSender, Wanted, ready_nodes, wanted_files
from graphml.cluster.ray_cluster import RayCluster, RayNode
from graphml.errors import UsageError
from graphml.runtime.programs.load_options import LoadOptions


@dataclass(frozen=True)
class EnginePlace:
    """One engine's node, its CPUs there, and how it opens the model."""

    node: RayNode
    cpus: float
    options: LoadOptions

    def actor_options(self, gpus: float) -> dict[str, Any]:
        """Of an actor there that Ray starts anew where it ends."""
        return {
            "num_cpus": self.cpus, "num_gpus": gpus, "max_restarts": -1,
            "scheduling_strategy": RayCluster.near(self.node),
        }  # fmt: skip


@dataclass(frozen=True)
class EnginePlaces:
    """wanted: what an engine needs on its node; source: who sends a file, alive as long as this is."""

    wanted: Wanted
    source: FileSender
    places: list[EnginePlace]


def engine_places(cluster: RayCluster, model: Model, options: EnginesOptions) -> EnginePlaces:
    """Places for the engines that options ask for, one a node by default.

    UsageError for a node or options with which no engine can run; it names the node.
    """
    opened = model.opened_by
    if opened is None:
        raise UsageError("engines: wanted a model that `graphml.load` has opened, to open it so on each node")
    wanted = wanted_files(model.path, [*map(Path, model.executor.file.paths)], opened)
    large = cluster.nodes_for(options.engines or 1, options.engine_cpus or 0, "--engine-cpus")
    source = FileSender(cluster, wanted.model)
    nodes = ready_nodes(cluster, large, wanted, source)
    count = options.engines or len(nodes)
    share = -(-count // len(nodes))  # engines of the first node
    sizes = [options.engine_cpus or nodes[i % len(nodes)].cpus / share for i in range(count)]
    cluster.check_free({"CPU": sum(sizes), "GPU": options.engine_gpus * count})
    return EnginePlaces(
        wanted, source,
        [
            EnginePlace(
                nodes[i % len(nodes)], cpus, replace(opened, threads=opened.threads or max(1, int(cpus)))
            )
            for i, cpus in enumerate(sizes)
        ],
    )  # fmt: skip
