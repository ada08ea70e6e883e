"""Names of keyword arguments: an unknown one is an error that names the argument that was meant.

Knows functions, and names that other libraries have for the same; nothing of what arguments do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from graphml.errors import ArgumentError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_SAMPLES: Final = "do_sample"
SAME_NAMES: Final = {
    **dict.fromkeys(
        ("max_new_tokens", "max_completion_tokens", "num_predict", "n_predict"), ("max_tokens",),
    ),
    "temp": ("temperature",), "repetition_penalty": ("repeat_penalty",), "typical": ("typical_p",),
    **dict.fromkeys(("stop_sequences", "stop_strings"), ("stop",)), "stop_token_ids": ("stop_tokens",),
    "bad_words": ("banned_strings",), "mirostat_mode": ("mirostat",), "top_logprobs": ("logprobs",),
    "schema": ("json_schema",), "sampling_params": ("params",),
    "num_beams": ("beams",), "num_return_sequences": ("n",), "system_prompt": ("system",),
    **dict.fromkeys(
        ("num_ctx", "ctx_size", "ctx", "context_length", "max_model_len", "max_seq_len"), ("n_ctx",)
    ),
    **dict.fromkeys(("n_threads", "num_threads"), ("threads",)), "device": ("backend",),
    **dict.fromkeys(("n_gpu_layers", "ngl"), ("gpu_layers",)), "chat_template": ("template",),
    **dict.fromkeys(("model", "model_path", "name"), ("path",)),
    **dict.fromkeys(
        ("max_num_seqs", "max_batch_size", "max_batch", "n_parallel", "parallel", "n_slots"),
        ("max_sequences",),
    ),
    "prompt": ("prompts",), "messages": ("prompts", "prompt"),
    **dict.fromkeys(("text", "input", "inputs"), ("prompts", "texts", "prompt", "text")),
    "sentences": ("texts",), "truncate_dim": ("dimensions",), "token_ids": ("ids",), "tokens": ("ids",),
    "add_special_tokens": ("add_special",), "special": ("parse_special",),
    "skip_special_tokens": ("skip_special",),
}  # fmt: skip
"""Names that other libraries have, and ours with the same meaning and values: they are taken as ours."""
OTHER_NAMES: Final = {
    "max_length": ("max_tokens",), "max_new": ("max_tokens",), "device_map": ("backend",),
    "cache_type": ("kv",), "kv_cache_dtype": ("kv",),
    **dict.fromkeys(("type_k", "type_v", "cache_type_k", "cache_type_v"), ("kv",)),
    **dict.fromkeys(("lora_path", "lora_paths", "adapter"), ("lora",)), "chat_format": ("template",),
    **dict.fromkeys(("eos_token_id", "stop_ids"), ("stop_tokens",)), "bad_words_ids": ("logit_bias",),
    **dict.fromkeys(("guided_json", "json"), ("json_schema",)), "guided_regex": ("regex",),
    "guided_grammar": ("grammar",), "topk": ("top_k",), "topp": ("top_p",), "greedy": ("temperature",),
    "best_of": ("n",), "bos": ("add_special",),
    "dtype": ("quant",), "torch_dtype": ("quant",), "quantization": ("quant",), "architecture": ("arch",),
    "n_seqs": ("n_sequences",), "add_bos": ("add_special",), _SAMPLES: ("temperature",),
    **dict.fromkeys(("response_format", "format"), ("json_schema",)), "timeout": ("deadline",),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), ("quant",)), "rope_freq_base": ("override_kv",),
    **SAME_NAMES,
}  # fmt: skip
"""The same, and names of something similar with other values, of which an error says ours."""
_SO_ANYWAY: Final = {
    **dict.fromkeys(("verbose", "echo", "stream", "return_full_text", "ignore_eos", "use_mlock"), False),
    **dict.fromkeys(("use_mmap", "use_cache", "flash_attn", "logits_all", "embedding", "embeddings"), True),
    "low_cpu_mem_usage": True, "trust_remote_code": False, "dtype": "auto", "torch_dtype": "auto",
    "tensor_parallel_size": 1, "num_beams": 1, "n": 1,
}  # fmt: skip
"""Arguments of other libraries that none has here, and the value that asks for what is so in any case."""
_NO_LIMIT: Final = frozenset({"n_gpu_layers", "ngl", "n_predict", "num_predict"})
"""Names in other libraries of arguments whose -1 is our None: all layers, no limit."""
GENERATES: Final = "what generates: Model.generate, Engine.submit, Session.generate and Chat.respond"
OF_GENERATING: Final = {
    "max_tokens": GENERATES,
    "seed": f"Model.session, Model.chat, and of {GENERATES}",
    "n": "Engine.submit and Model.best_of",
}
"""Arguments that are no settings of sampling, and whose they are."""
_FEW: Final = 8
"""The most arguments that an error lists."""
_NO_ARGUMENT: Final = {
    "stream": "Use Model.stream(...) or Chat.stream(...), or iterate over what Engine.submit returns.",
    "echo": "A result has no prompt; prompt + result.text is both, and prompt_logprobs=0 scores its tokens.",
    "ignore_eos": "logit_bias={model.tokenizer.eos_id: -1000.0} goes on behind an end.",
    **dict.fromkeys(
        ("logits_processor", "logits_processors", "logit_processor", "prefix_allowed_tokens_fn"),
        "Use function=f: f(ids, logits, history) changes the logits before a token is sampled.",
    ),
    "stopping_criteria": "stop= and stop_tokens= end an answer; so does leaving a loop over Model.stream.",
    **dict.fromkeys(("streamer", "callback"), "Iterate over Model.stream(...)."),
    "min_tokens": "logit_bias={model.tokenizer.eos_id: -1000.0} goes on behind an end.",
    "tfs_z": "Tail-free sampling is not there, nor in llama.cpp any more; min_p and typical_p are near.",
    "penalty_alpha": "Contrastive search is not there; min_p or repeat_penalty is against repetitions.",
    "options": "Each setting is a keyword of its own: temperature=0.5, top_k=40.",
    "skip_special_tokens": "Texts are without control tokens in any case; tokenizer.decode has skip_special.",
    "verbose": "logging.basicConfig(level='DEBUG') shows what is logged, progress= of load long work.",
}
"""Arguments of other libraries that none has here, and what does the same."""


def named_arguments(
    function: Callable[P, R], collected: Collection[str] = (), elsewhere: Mapping[str, str] | None = None
) -> Callable[P, R]:
    """The function, which takes other libraries' names of its arguments, too.

    Raises an `ArgumentError` for a keyword that it does not have, and for one that is there by two names.
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
        if known.issuperset(kwargs):
            return function(*args, **kwargs)
        name = function.__qualname__.removesuffix(".__init__")
        ours = in_our_names(name, kwargs, known)
        if not known.issuperset(ours):
            raise unknown_argument(name, ours, known - {"self"}, elsewhere or {})
        return function(*args, **ours)

    checked.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined] # for help, tools
    return checked


def in_our_names(name: str, keywords: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The keywords by the names that a function knows, where these mean the same; others stay.

    Those are left out whose value asks for what is so in any case.
    """
    ours: dict[str, Any] = {}
    for keyword, value in keywords.items():
        same = (other for other in SAME_NAMES.get(keyword, ()) if other in known)
        own = keyword if keyword in known else next(same, keyword)
        if own not in known and isinstance(value, int | str) and _SO_ANYWAY.get(keyword) == value:
            continue
        if own in ours or (own != keyword and own in keywords):
            raise ArgumentError(f"{name}: {keyword!r} is {own!r}; wanted one of them, got both")
        ours[own] = None if keyword in _NO_LIMIT and value == -1 else value
    if _SAMPLES in ours and "temperature" in known:
        samples = ours.pop(_SAMPLES)
        if bool(samples) != bool(ours.setdefault("temperature", 0.0)):
            wanted = "a temperature above 0" if samples else "no temperature but 0"
            raise ArgumentError(f"{name}: {_SAMPLES}={samples!r}: wanted {wanted} beside it")
    return ours


def unknown_argument(
    name: str, keywords: Collection[str], known: Collection[str], elsewhere: Mapping[str, str]
) -> ArgumentError:
    """The error of a function or class that is given keywords of which one is not known."""
    (wrong, *_) = (keyword for keyword in keywords if keyword not in known)
    meant = (wrong, *OTHER_NAMES.get(wrong, ()))
    own = [other for other in meant if other in known]
    away = [other for other in meant if other in elsewhere]
    if not own and wrong in _NO_ARGUMENT:
        hint = f" {_NO_ARGUMENT[wrong]}"
    elif own or not away:
        hint = f" Did you mean {own[0]!r}?" if own else did_you_mean(wrong, sorted(known))
    else:
        hint = f" {away[0]!r} is an argument of {elsewhere[away[0]]}."
    if not hint and known and len(known) <= _FEW:
        hint = f" There are {', '.join(sorted(known))}."
    return ArgumentError(f"{name}: no argument is called {wrong!r}.{hint}")
