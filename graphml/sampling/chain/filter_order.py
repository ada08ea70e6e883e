"""Which samplers run, and in which order: by default llama.cpp's, and those that params switch on.

Each file of `graphml.sampling.filters` has one filter and its place. What a filter does is in its file.
"""

from __future__ import annotations

import importlib
import pkgutil

from graphml.sampling import filters as files
from graphml.sampling.candidates.filter import Filter
from graphml.sampling.filters import dynamic_temperature, temperature
from graphml.sampling.settings.params import SamplingParams
from graphml.sampling.settings.sampler_names import named_in


def _found() -> tuple[Filter, ...]:
    names = (module.name for module in pkgutil.iter_modules(files.__path__))
    every = [importlib.import_module(f"{files.__name__}.{name}").FILTER for name in names]
    return tuple(sorted(every, key=lambda filter_: filter_.place))


CHAIN: tuple[Filter, ...] = _found()
"""Every filter, by its place. Filters that adjust logits come first."""


def filters_on(params: SamplingParams, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """The filters, such as those of `CHAIN`, that `params` switches on, in order.

    A greedy chain goes from the penalties straight to the highest logit: of the filters between only typical
    could remove it, and there temperature 0, which the caller asked for, counts more. llama.cpp differs in
    that one case. Mirostat replaces the filters, but for biases and temperature, as in llama.cpp.
    """
    if params.samplers:
        filters = _in_order(params.samplers, filters)
    on = (filter_ for filter_ in filters if filter_.is_on(params))
    if params.greedy:
        adjusting = [filter_ for filter_ in on if filter_.adjusts]
        return (*adjusting, temperature.FILTER)
    if params.mirostat:
        return tuple(filter_ for filter_ in on if filter_.with_mirostat)
    return tuple(on)


def _in_order(order: str, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """The named ones; those that always run at the ends, where they are not named."""
    both = {temperature.FILTER.name: (dynamic_temperature.FILTER.name, temperature.FILTER.name)}
    named = [name for filter_name in named_in(order) for name in both.get(filter_name, (filter_name,))]
    between = [filter_ for name in named for filter_ in filters if filter_.name == name]
    always = [filter_ for filter_ in filters if filter_.always and filter_ not in between]
    before, after = ([filter_ for filter_ in always if filter_.selects is last] for last in (False, True))
    return (*before, *between, *after)
