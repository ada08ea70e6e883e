"""Which replica Ray Serve sends a request to: one that has read its beginning, or the one that is meant.

Knows Ray Serve's routers; nothing of requests but their beginnings.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from graphml.cluster import replica_set
from graphml.cluster.prefix_routing import PrefixRouter


class PrefixAffinity(RequestRouter):  # type: ignore[misc] # Ray has no types for mypy
    """Routes by `text`, the beginning of a request, or by `only`, a replica's name: arguments of the call."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Nothing has been read yet."""
        self._router = PrefixRouter()
        self._loads: dict[str, int] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Replicas have come or gone."""
        super().update_replicas(replicas)
        names = {replica.replica_id.unique_id for replica in replicas}
        for name in self._loads.keys() - names:
            self._router.forget(name)
        self._loads = {name: self._loads.get(name, 0) for name in names}
        # Ray copies what this module has of its own.
        replica_set.RUNNING[self.app_name] = tuple(sorted(names))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica, and behind it the others for when it has gone."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        asked = {} if pending_request is None else pending_request.kwargs
        only, text = asked.get("only", ""), asked.get("text", "")
        if only in by_name:
            return [[by_name[only]]]
        name = self._router.choose(text, {name: self._loads.get(name, 0) for name in by_name})
        return [[by_name[name]], [replica for other, replica in by_name.items() if other != name]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A replica has one more to answer."""
        self._loads[replica_id.unique_id] = self._loads.get(replica_id.unique_id, 0) + 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """And one less."""
        count = self._loads.get(replica_id.unique_id, 0)
        if replica_id.unique_id in self._loads:
            self._loads[replica_id.unique_id] = max(0, count - 1)
