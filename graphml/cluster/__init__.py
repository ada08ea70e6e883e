"""Several machines by Ray: engines of a batch job on the nodes of a cluster, and replicas of a server.

Needs the extra `ray`, but for routing and autoscaling, which know nothing of it. `graphml batch --ray` and
`graphml serve --ray` are this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphml.cluster.ray_engines import EnginesOptions, RayEngines, engines_on_ray

__all__ = ["EnginesOptions", "RayEngines", "engines_on_ray"]


def __getattr__(name: str) -> Any:
    """A name of `__all__`, which imports Ray."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from graphml.cluster import ray_engines

    return getattr(ray_engines, name)
