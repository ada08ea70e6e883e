"""How many replicas a server wants: as many as its answers need, and one more where caches are full.

Knows loads; Ray Serve asks it, and adds delays and bounds of its own.
"""

from __future__ import annotations

import math
from typing import Any

FULL = 0.9
"""Share of the blocks of all caches from which on another replica is wanted."""
UP_S, DOWN_S = 5.0, 60.0
"""Seconds for which more, or fewer, must be wanted."""
INTERVAL_S, LOOK_BACK_S = 1.0, 5.0
"""Seconds between two reports of a load, and of those over which loads are averaged."""


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """The number of replicas, by the loads that `Replica.record_autoscaling_stats` reports.

    context: an AutoscalingContext. A replica runs `parallel` answers at a time, which its own setting of
    ongoing requests says; so waiting answers are those that another replica could run now.
    """
    current = max(1, context.current_num_replicas)
    metrics = context.aggregated_metrics or {}
    waiting, running = (sum(metrics.get(name, {}).values()) for name in ("waiting", "running"))
    blocks = metrics.get("blocks", {})
    parallel = context.config.target_ongoing_requests
    # Requests that no replica has taken yet count, too.
    n_answers = max(waiting + running, context.total_num_requests or 0)
    wanted = math.ceil(n_answers / parallel)
    if blocks and sum(blocks.values()) / len(blocks) >= FULL:
        wanted = max(wanted, current + 1)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(wanted, least), most), {}
