"""A Ray cluster: joined at its address, its nodes checked, and its loss noticed.

Knows Ray; nothing of models.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphml import settings
from graphml.cluster.cluster_options import check_address
from graphml.errors import BackendError, UsageError
from graphml.system.closing import Closing

NAMESPACE = "graphml"
"""Where this package's actors have their names."""
CONNECT_S = 5.0
POLL_S, LOST_AFTER = 2.0, 3
"""Seconds between two looks at the head node, and how many in a row must fail."""
START = "start one with `ray start --head`"


@dataclass(frozen=True)
class RayNode:
    """A living node: its id, host name and address, and CPUs in all."""

    id: str
    name: str
    address: str
    cpus: float

    def __str__(self) -> str:
        return f"{self.name} ({self.address}, {self.id[:8]})"


class RayCluster(Closing):
    """A cluster that this process has joined; closed, it leaves again, and what it started there ends.

    address: HOST:PORT of the head node, or "auto": the one that RAY_ADDRESS names or that runs here.
    UsageError where there is none, or one of other versions of Ray or Python.
    """

    def __init__(self, address: str) -> None:
        if ray.is_initialized():
            raise UsageError("--ray: this process has joined a cluster already")
        if address == "auto":
            address = settings.ray_address()
        check_address(address)
        if address != "auto" and not _listens(address):
            raise UsageError(f"--ray: nothing listens at {address}; {START}")
        try:
            joined = ray.init(
                address=address, log_to_driver=False, logging_level="ERROR", namespace=NAMESPACE,
                ignore_reinit_error=False, configure_logging=False,
            )  # fmt: skip
        except ray.exceptions.AuthenticationError:
            raise UsageError(
                f"--ray: {address}: the cluster has another token than this machine; copy ~/.ray/auth_token"
            ) from None
        except ConnectionError:
            raise UsageError(f"--ray: no cluster at {address!r}; {START}") from None
        except RuntimeError as error:
            raise UsageError(f"--ray: {address}: {_one_line(error)}") from None
        self.address = str(joined.address_info["gcs_address"])
        self._lost, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._watch, name="graphml cluster", daemon=True).start()

    @property
    def nodes(self) -> list[RayNode]:
        """Living nodes that have CPUs."""
        return [
            RayNode(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"], cpus)
            for node in ray.nodes()
            if node["Alive"] and (cpus := node["Resources"].get("CPU", 0.0)) > 0
        ]

    def nodes_for(self, count: int, cpus: float, flag: str) -> list[RayNode]:
        """Nodes that have so many CPUs; UsageError where as many actors with these never fit on them."""
        large = [node for node in self.nodes if node.cpus >= cpus]
        if not large:
            raise UsageError(f"{flag}: no node of the cluster has {cpus:g} CPUs")
        most = sum(int(node.cpus / cpus + 1e-6) for node in large) if cpus else count
        if most < count:
            raise UsageError(f"{flag}: wanted {count} times {cpus:g} CPUs, of a node each; {most} fit")
        return large

    @staticmethod
    def check_free(needed: Mapping[str, float]) -> None:
        """UsageError unless this much of each resource is free on the nodes together."""
        free, every = ray.available_resources(), ray.cluster_resources()
        for name, count in needed.items():
            if count > free.get(name, 0.0) + 1e-6:
                raise UsageError(
                    f"--ray: wanted {count:g} {name}s of the cluster; {free.get(name, 0.0):g} of its "
                    f"{every.get(name, 0.0):g} are free"
                )

    @staticmethod
    def near(node: RayNode) -> NodeAffinitySchedulingStrategy:
        """Where an actor of that node runs; on another one that has room, where it is gone."""
        return NodeAffinitySchedulingStrategy(node.id, soft=True)

    @staticmethod
    def on(node: str) -> NodeAffinitySchedulingStrategy:
        """Where a task or actor of the node with that id alone runs."""
        return NodeAffinitySchedulingStrategy(node, soft=False)

    def get(self, reference: Any) -> Any:
        """What a call on the cluster answers; BackendError where the head node has gone."""
        while True:
            try:
                return ray.get(reference, timeout=POLL_S)
            except ray.exceptions.GetTimeoutError:
                if self._lost.is_set():
                    raise self.lost() from None

    @property
    def is_lost(self) -> bool:
        """Whether the head node has not answered for a while."""
        return self._lost.is_set()

    def lost(self) -> BackendError:
        """The error of a cluster that is lost."""
        return BackendError(f"--ray: the head node at {self.address} does not answer any more")

    def _watch(self) -> None:
        failures = 0
        while failures < LOST_AFTER and not self._closed.wait(POLL_S):
            failures = 0 if _listens(self.address) else failures + 1
        if failures == LOST_AFTER:
            self._lost.set()

    def close(self) -> None:
        """Leave the cluster."""
        self._closed.set()
        if self.is_lost:
            return  # Ray would wait for the head node
        with contextlib.suppress(Exception):
            ray.shutdown()


def python_version() -> str:
    """Of this process, as nodes compare it."""
    return ".".join(map(str, sys.version_info[:2]))


def described(error: BaseException) -> str:
    """What has ended a call on a node, in one line: graphml's own error where it is one."""
    cause: Any = getattr(error, "cause", None) or error.__cause__ or error
    return _one_line(cause)


def _one_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:600] if lines else type(error).__name__


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError:
        return False
    return True
