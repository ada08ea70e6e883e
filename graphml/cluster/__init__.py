"""Several machines by Ray: engines of a batch job on the nodes of a cluster, and replicas of a server.

Needs the extra `ray`. `graphml batch --ray` and `graphml serve --ray` are this package.
"""

from graphml.cluster.ray_engines import EnginesOptions, RayEngines, engines_on_ray

__all__ = ["EnginesOptions", "RayEngines", "engines_on_ray"]
