"""Names of keyword arguments: an unknown one is an error that names the argument that was meant.

Knows functions, and names that other libraries have for the same; nothing of what arguments do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Final, ParamSpec, TypeVar

from graphml.errors import ArgumentError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

OTHER_NAMES: Final = {
    "temp": ("temperature",), "max_new_tokens": ("max_tokens", "max_new"), "num_predict": ("max_tokens",),
    "n_predict": ("max_tokens",), "max_length": ("max_tokens",), "max_completion_tokens": ("max_tokens",),
    "max_tokens": ("max_new",), "max_new": ("max_tokens",), "repetition_penalty": ("repeat_penalty",),
    "stop_sequences": ("stop",), "stop_strings": ("stop",), "stop_token_ids": ("stop_tokens",),
    "do_sample": ("temperature",), "num_beams": ("beams",), "typical": ("typical_p",),
    "num_ctx": ("n_ctx",), "context_length": ("n_ctx",), "max_model_len": ("n_ctx",),
    "device": ("backend",), "device_map": ("backend",), "n_gpu_layers": ("gpu_layers",),
    "ngl": ("gpu_layers",), "n_threads": ("threads",), "num_threads": ("threads",), "cache_type": ("kv",),
    "kv_cache_dtype": ("kv",),
    "dtype": ("quant",), "torch_dtype": ("quant",), "quantization": ("quant",), "architecture": ("arch",),
    "model": ("path",), "model_path": ("path",), "name": ("path",), "chat_template": ("template",),
    "system_prompt": ("system",), "sampling_params": ("params",), "n_seqs": ("n_sequences",),
    "prompt": ("prompts",), "messages": ("prompts", "prompt"), "text": ("prompts", "prompt", "texts"),
    "max_num_seqs": ("max_sequences",), "schema": ("json_schema",), "num_return_sequences": ("n",),
    "add_special_tokens": ("add_special",), "add_bos": ("add_special",), "special": ("parse_special",),
    "skip_special_tokens": ("skip_special",), "response_format": ("json_schema",),
    "input": ("texts", "prompts"),
}  # fmt: skip
"""Names that other libraries have, and ours for the same."""


def named_arguments(
    function: Callable[P, R], collected: Collection[str] = (), elsewhere: Mapping[str, str] | None = None
) -> Callable[P, R]:
    """The function, which raises an `ArgumentError` for a keyword that it does not have.

    collected: the keywords that its `**` may hold. elsewhere: arguments that are expected here -> whose they
    are.
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(own) < len(signature.parameters):
        names = [name for name in collected if name not in signature.parameters]
        own += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    known = frozenset(parameter.name for parameter in own)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not known.issuperset(kwargs):
            name = function.__qualname__.removesuffix(".__init__")
            raise unknown_argument(name, kwargs, known - {"self"}, elsewhere or {})
        return function(*args, **kwargs)

    checked.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined] # for help, tools
    return checked


def unknown_argument(
    name: str, keywords: Collection[str], known: Collection[str], elsewhere: Mapping[str, str]
) -> ArgumentError:
    """The error of a function or class that is given keywords of which one is not known."""
    (wrong, *_) = (keyword for keyword in keywords if keyword not in known)
    meant = (wrong, *OTHER_NAMES.get(wrong, ()))
    own = [other for other in meant if other in known]
    away = [other for other in meant if other in elsewhere]
    if own or not away:
        hint = f" Did you mean {own[0]!r}?" if own else did_you_mean(wrong, sorted(known))
    else:
        hint = f" {away[0]!r} is an argument of {elsewhere[away[0]]}."
    return ArgumentError(f"{name}: no argument is called {wrong!r}.{hint}")
