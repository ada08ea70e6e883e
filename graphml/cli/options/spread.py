"""Work of a command that is spread over a Ray cluster, `--ray`; Ray is imported when it is asked for.

Knows options; nothing of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from graphml.api.model import Model
from graphml.cluster.cluster_options import EnginesOptions, importing_ray
from graphml.errors import UsageError
from graphml.options.option_fields import options_of


def check_engines(options: EnginesOptions) -> None:
    """UsageError for options of engines on a cluster without one."""
    for name, stated in options_of(EnginesOptions).items():
        if options.ray is None and getattr(options, name):
            raise UsageError(f"{stated.flags[-1]}: wanted --ray ADDRESS with it")


def spread_on_ray(
    model: Model, options: EnginesOptions
) -> Callable[[Callable[[Model, Any], Any], Sequence[Any]], Iterator[Any]]:
    """`graphml.cluster.spread_work.spread` with this model and these options."""
    with importing_ray():
        from graphml.cluster.spread_work import spread

    return partial(spread, model, options)
