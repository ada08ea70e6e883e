"""A server of several replicas: Ray Serve runs them, and this process lets requests in.

Knows Ray Serve and sockets; what is asked is the front's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from graphml.cluster.autoscaling import DOWN_S, INTERVAL_S, LOOK_BACK_S, UP_S, replicas_wanted
from graphml.cluster.cluster_options import ReplicaOptions
from graphml.cluster.front import Front
from graphml.cluster.node_check import FileSender, Wanted, ready_nodes, wanted_files
from graphml.cluster.ray_cluster import RayCluster, described
from graphml.cluster.replica import Replica
from graphml.cluster.replica_router import PrefixAffinity
from graphml.cluster.replica_set import ReplicaSet
from graphml.errors import BackendError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.server.access.connections import check_certificate
from graphml.server.access.open_connections import OpenConnections
from graphml.server.listening import listening
from graphml.server.observing.request_log import Ended
from graphml.server.observing.told_lines import tell
from graphml.server.observing.trace_export import TraceExport
from graphml.server.options.server_options import ServerOptions
from graphml.server.serving import SWITCH_S, addresses, run_application

REPLICA = "replica"
"""The name of the replicas' deployment."""
ONGOING = 1 << 16
"""Requests of a replica that Ray Serve lets through: what is too much is the server's to refuse."""
LOOK_S = 0.5
SERVE_LOG = {"log_level": "ERROR", "enable_access_log": False}


def deployment(
    path: Path | str, wanted: Wanted | None, source: str, opening: LoadOptions, options: ServerOptions,
    replicas: ReplicaOptions,
) -> Any:  # fmt: skip
    """The replicas as a deployment of Ray Serve that is bound to its arguments."""
    scaling: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.most > replicas.least:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=replicas.least, max_replicas=replicas.most, initial_replicas=replicas.least,
                target_ongoing_requests=options.parallel, upscale_delay_s=UP_S, downscale_delay_s=DOWN_S,
                metrics_interval_s=INTERVAL_S, look_back_period_s=LOOK_BACK_S,
                policy=AutoscalingPolicy(policy_function=replicas_wanted),
            )
        }  # fmt: skip
    made_so = serve.deployment(
        Replica, name=REPLICA, max_ongoing_requests=ONGOING, health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=options.drain, graceful_shutdown_wait_loop_s=0.2,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        request_router_config=RequestRouterConfig(request_router_class=PrefixAffinity),
        logging_config=SERVE_LOG, **scaling,
    )  # fmt: skip
    return made_so.bind(path, wanted, source, opening, options)


def serve_replicas_until_stopped(
    path: Path, tensor_files: Sequence[Path], opening: LoadOptions, options: ServerOptions,
    replicas: ReplicaOptions,
) -> None:  # fmt: skip
    """Serve a model by replicas until SIGTERM or Ctrl-C.

    UsageError for a cluster or a node where no replica can run; BackendError where they do not start.
    """
    check_certificate(options)
    sys.setswitchinterval(SWITCH_S)
    name = f"graphml-{options.port}"
    with RayCluster(replicas.address) as cluster, contextlib.ExitStack() as stack:
        wanted = wanted_files(path, tensor_files, opening)
        sender = FileSender(cluster, wanted.model)
        nodes = cluster.nodes_for(replicas.least, replicas.cpus, "--replica-cpus")
        ready_nodes(cluster, nodes, wanted, sender)
        cluster.check_free({"CPU": replicas.least * replicas.cpus, "GPU": replicas.least * replicas.gpus})
        connections = OpenConnections(max(options.limits.connections, 2 * options.limits.waiting), tell)
        with listening(options.hosts, options.port, connections) as sockets:
            logging.getLogger("ray.serve").setLevel(logging.ERROR)
            serve.start(proxy_location="Disabled", logging_config=SERVE_LOG)
            bound = deployment(path, wanted, sender.name, opening, options, replicas)
            listeners: list[Ended] = []
            if options.otlp_endpoint is not None:
                traces = TraceExport(options.otlp_endpoint)
                stack.callback(traces.close)
                listeners.append(traces)
            try:
                handle = serve.run(bound, name=name, route_prefix=None, logging_config=SERVE_LOG)
                replica_set = ReplicaSet(handle, name)
                where = f"graphml: {path.name} at {addresses(options, sockets)}"
                front = Front(options, replica_set)
                asyncio.run(_run(front, replica_set, cluster, sockets, connections, where, listeners))
            except (RuntimeError, ray.exceptions.RayError) as error:
                raise BackendError(f"--ray: {described(error)}") from None
            finally:
                if not cluster.is_lost:
                    serve.delete(name)


async def _run(
    front: Front, replica_set: ReplicaSet, cluster: RayCluster, sockets: list[Any],
    connections: OpenConnections, where: str, listeners: Sequence[Ended],
) -> None:  # fmt: skip
    count = len(await replica_set.names())

    def ready() -> None:
        tell(f"{where} ({count} replicas of {front.options.parallel} slots)")

    async def lost() -> None:
        while not cluster.is_lost:
            await asyncio.sleep(LOOK_S)

    app = run_application(front.app(listeners), front, front.keys, sockets, connections, ready)
    running, losing = asyncio.ensure_future(app), asyncio.ensure_future(lost())
    try:
        await asyncio.wait({running, losing}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            front.drain()
            front.cancel()
            raise cluster.lost()
        running.result()
    finally:
        for task in (running, losing):
            task.cancel()
        await asyncio.gather(running, losing, return_exceptions=True)
