"""The number of replicas that loads ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphml.cluster.autoscaling import replicas_wanted


def wanted(current: int, waiting: float, running: float, blocks: float, queued: float = 0) -> int:
    each = {f"r{i}": 1.0 / current for i in range(current)}
    metrics: dict[str, Any] = {
        name: {replica: share * value for replica, share in each.items()}
        for name, value in (("waiting", waiting), ("running", running))
    }
    metrics["blocks"] = dict.fromkeys(each, blocks)
    context = SimpleNamespace(
        current_num_replicas=current, aggregated_metrics=metrics, total_num_requests=queued,
        config=SimpleNamespace(target_ongoing_requests=4),
        capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=5,
    )  # fmt: skip
    return replicas_wanted(context)[0]


@pytest.mark.parametrize(
    ("current", "waiting", "running", "blocks", "queued", "count"),
    [
        (1, 0, 0, 0.0, 0, 1),
        (1, 0, 4, 0.2, 4, 1),
        (1, 1, 4, 0.2, 5, 2),  # one waits that another replica could run
        (1, 12, 4, 0.2, 16, 4),
        (2, 0, 3, 0.2, 3, 1),
        (2, 0, 8, 0.95, 8, 3),  # caches are full: more would preempt one another
        (2, 100, 8, 0.95, 108, 5),
        (1, 0, 0, 0.0, 9, 3),  # no replica has taken them yet
    ],
)
def test_replicas_follow_answers_and_blocks(
    current: int, waiting: float, running: float, blocks: float, queued: float, count: int
) -> None:
    assert wanted(current, waiting, running, blocks, queued) == count


def test_without_any_reports_the_least_number_stays() -> None:
    context = SimpleNamespace(
        current_num_replicas=0, aggregated_metrics=None, total_num_requests=0,
        config=SimpleNamespace(target_ongoing_requests=4),
        capacity_adjusted_min_replicas=2, capacity_adjusted_max_replicas=5,
    )  # fmt: skip
    assert replicas_wanted(context)[0] == 2
