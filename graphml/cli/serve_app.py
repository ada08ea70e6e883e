"""A server's command line as an application of Ray Serve, for its deploy files: `serve deploy FILE.yaml`.

Knows flags and deployments; what they mean is in `graphml.cli.serve`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ray import serve

from graphml.cli.serve import (
    check_binding,
    load_options,
    refuse_with_replicas,
    replica_options,
    server_options,
)
from graphml.cluster.front import Front
from graphml.cluster.replica_set import ReplicaSet
from graphml.cluster.replicated_server import ONGOING, REPLICA, SERVE_LOG, deployment
from graphml.errors import UsageError
from graphml.server.options.command_line import by_flag, parsed

OF_PROXY = ("host", "port", "ssl_key", "ssl_certificate", "ray")
"""Flags of where a server listens: Ray Serve's proxies do."""


def app(args: Mapping[str, str]) -> Any:
    """An application of the command line `args["command"]`, such as "smollm2 --replicas 1-4 -c 4096".

    MODEL is found on each node: a path, or a name that is downloaded. UsageError for flags that replicas
    cannot have, and without a key, unless --allow-no-key: Ray Serve's proxies listen to other machines.
    """
    if set(args) != {"command"} or not isinstance(args["command"], str):
        raise UsageError(f"args: wanted command: 'MODEL and flags of graphml serve'; got {dict(args)!r:.200}")
    command = parsed(shlex.split(args["command"]))
    for name in OF_PROXY:
        if name in command.values:
            flag = by_flag(UsageError(f"{name}: Ray Serve's proxies listen"))
            raise UsageError(f"args: command: {flag}")
    refuse_with_replicas(command)
    options, opening = replace(server_options(command), hosts=("0.0.0.0",)), load_options(command)
    check_binding(options)
    replicas = replica_options(command.values, "auto")
    opening = replace(opening, threads=opening.threads or max(1, int(replicas.cpus)))
    named = command.model or command.values.get("model") or command.values.get("hf") or "smollm2"

    def front() -> Any:
        application = serve.get_replica_context().app_name
        handle = serve.get_deployment_handle(REPLICA, application)
        return Front(options, ReplicaSet(handle, application)).app()

    ingress = serve.deployment(
        serve.ingress(front)(), name="front", max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": 0}, logging_config=SERVE_LOG,
    )  # fmt: skip
    return ingress.bind(deployment(named, None, "", opening, options, replicas))
