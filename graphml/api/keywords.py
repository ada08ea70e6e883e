"""Settings of sampling as keywords of what generates, and whose an argument is that is expected elsewhere.

Knows the names of arguments; nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from graphml.options.keyword_arguments import GENERATES, OF_GENERATING, named_arguments
from graphml.options.option_fields import options_of
from graphml.sampling import SamplingParams

P = ParamSpec("P")
R = TypeVar("R")

SAMPLING: Final = tuple(options_of(SamplingParams))
"""The fields of `SamplingParams`, each a keyword of what generates."""
ELSEWHERE: Final = {
    **dict.fromkeys(SAMPLING, f"SamplingParams, and of {GENERATES}"),
    **OF_GENERATING,
    "n_ctx": "load, Model.session, Model.chat and Model.engine",
    "system": "Model.chat",
    "tools": "Model.chat, Chat.respond, Chat.stream and Chat.events",
    **dict.fromkeys(("backend", "gpu_layers", "threads", "template", "quant", "override_kv"), "load"),
    **dict.fromkeys(("beams", "length_penalty", "early_stopping"), "Model.beam_search"),
    "suffix": "Model.fill",
    "lora": "load, Model.session and Engine.submit",
    "deadline": "Engine.submit",
}
"""Arguments that many expect at other functions, and whose they are."""


def hinted(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises an `ArgumentError` that names the nearest for a keyword it does not have.

    Where it collects keywords, these are the fields of `SamplingParams`.
    """
    return named_arguments(function, SAMPLING, ELSEWHERE)
