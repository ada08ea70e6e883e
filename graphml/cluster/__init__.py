"""Several machines by Ray: engines of batch jobs, replicas of servers, stages of models, benchmarks of nodes.

Needs the extra `ray`, but for options, routing and autoscaling, which know nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphml.cluster.cluster_options import EnginesOptions, importing_ray

if TYPE_CHECKING:
    from graphml.cluster.ray_engines import RayEngines, engines_on_ray

__all__ = ["EnginesOptions", "RayEngines", "engines_on_ray"]


def __getattr__(name: str) -> Any:
    """A name of `__all__` that imports Ray; UsageError without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with importing_ray():
        from graphml.cluster import ray_engines

    return getattr(ray_engines, name)
