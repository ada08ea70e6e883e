"""What a request says of sampling, as the engine wants it: its own settings over those of the server.

Knows fields and sampling parameters; nothing of prompts or streams.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphml.errors import UsageError, json_type
from graphml.sampling import SamplingParams
from graphml.sampling.settings.params import DIFFUSION, STRUCTURES
from graphml.server.access.text_limits import check_json_chars
from graphml.server.options.server_options import NO_CACHE_REUSE, RequestLimits, ServerOptions
from graphml.server.requests.draft_names import SHOWN, draft_fields
from graphml.server.requests.request_fields import ChatCompletion, Completion, Sampling, TextCompletion
from graphml.server.responses.api_errors import wrong_field
from graphml.text.tokenizer import Tokenizer

TOLD = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "dynatemp_range", "dynatemp_exponent", "repeat_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat",
    "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "min_keep",
)  # fmt: skip
"""Fields of `SamplingParams` that llama-server tells of a request, by the same names."""
SAME = (*TOLD, "regex", "open_objects", *DIFFUSION)
"""Those, and others of the same name and meaning."""
FORBIDDEN = -math.inf
ID = re.compile(r"-?[0-9]{1,18}")
NO_LIMIT = 1 << 30
"""Tokens of reasoning that can be ended by another request, where no budget ends it."""


@dataclass(frozen=True)
class RequestSettings:
    """How a prompt is continued. seed: None for a random one; max_tokens: None: until the model ends.

    n: how often. n_best: so many are told, the most likely ones; None: all of them.
    """

    params: SamplingParams
    seed: int | None
    max_tokens: int | None
    n: int
    ignore_eos: bool
    n_best: int | None = None

    @property
    def engine_params(self) -> SamplingParams:
        """The params that the engine samples by.

        A text that follows a structure is written in the tokenizer's own tokens, which `rng="llama.cpp"`, a
        server's default, is not.
        """
        structured = any(getattr(self.params, name) for name in STRUCTURES if name != "begins_with")
        return replace(self.params, rng="graphml") if structured else self.params


def settings_of(sampling: Sampling, options: ServerOptions, tokenizer: Tokenizer) -> RequestSettings:
    """The settings of a request; ApiError 400 naming the field that is wrong."""
    if (sampling.n_cache_reuse or 0) > 0:
        raise wrong_field("n_cache_reuse", NO_CACHE_REUSE)
    changes: dict[str, Any] = {name: value for name in SAME if (value := getattr(sampling, name)) is not None}
    if sampling.top_k is not None:
        changes["top_k"] = max(0, sampling.top_k)
    if sampling.samplers is not None:
        changes["samplers"] = (
            sampling.samplers if isinstance(sampling.samplers, str) else ";".join(sampling.samplers)
        )
    if sampling.dry_sequence_breakers is not None:
        changes["dry_sequence_breakers"] = _breakers(sampling.dry_sequence_breakers, options.limits)
    if sampling.stop is not None:
        changes["stop"] = _stops(sampling.stop, options.limits)
    ignore_eos = options.ignore_eos if sampling.ignore_eos is None else sampling.ignore_eos
    biases = _biases(sampling.logit_bias, options.limits, tokenizer)
    if ignore_eos:
        biases |= dict.fromkeys(sorted(tokenizer.end_tokens), FORBIDDEN)
    if biases:
        changes["logit_bias"] = {**options.params.logit_bias, **biases}
    changes |= draft_fields(sampling, options.params)
    changes |= _structure(sampling, options.limits)
    changes |= _logprobs(sampling, options.limits)
    params = _checked(replace(options.params, reasoning_budget=-1, reasoning_budget_message=""), changes)
    seed = options.seed if sampling.seed is None else sampling.seed
    limits = (sampling.n_predict, sampling.max_completion_tokens, sampling.max_tokens)
    most = next((limit for limit in limits if limit is not None), options.n_predict)
    count, n_shown = _counts(sampling, options.limits)
    return RequestSettings(params, None if seed == -1 else seed % 2**32, None if most < 0 else most,
                    count, ignore_eos, n_shown)  # fmt: skip


def budget_of(chat: ChatCompletion) -> int | None:
    """The tokens of reasoning that a request allows; None where it does not say, as with -1."""
    for name in ("reasoning_budget_tokens", "thinking_budget_tokens"):
        budget: int | None = getattr(chat, name)
        if budget is not None and budget < -1:
            raise wrong_field(name, f"wanted tokens, or -1 for the server's limit; got {budget}")
        if budget is not None:
            return None if budget == -1 else budget
    return None


def reasoning_limits(chat: ChatCompletion, options: ServerOptions) -> dict[str, Any]:
    """How the reasoning of a conversation is limited, as fields of `SamplingParams`."""
    budget, message = budget_of(chat), chat.reasoning_budget_message
    if budget is None:
        budget = options.params.reasoning_budget
    if budget < 0 and chat.reasoning_control:
        budget = NO_LIMIT
    message = options.params.reasoning_budget_message if message is None else message
    if len(message) > options.limits.stop_chars:
        raise wrong_field(
            "reasoning_budget_message", f"at most {options.limits.stop_chars} characters are wanted"
        )
    return {"reasoning_budget": budget, "reasoning_budget_message": message}


def _counts(sampling: Sampling, limits: RequestLimits) -> tuple[int, int | None]:
    """How many answers are generated, and how many of them are told, None for all."""
    count = sampling.n_cmpl or sampling.n or 1
    if count > limits.n:
        raise wrong_field("n", f"at most {limits.n} are wanted, got {count}")
    best_of = sampling.best_of if isinstance(sampling, TextCompletion) else None
    if best_of is None or best_of == count:
        return count, None
    if best_of < count:
        raise wrong_field("best_of", f"wanted n = {count} or more, got {best_of}")
    if best_of > limits.n:
        raise wrong_field("best_of", f"at most {limits.n} are wanted, got {best_of}")
    if sampling.stream:
        raise wrong_field("best_of", "wanted no stream with it: which is best is known at the end")
    return best_of, count


def _logprobs(sampling: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """How many of the most likely tokens are told with each: none is for none, 0 for the token alone."""
    wanted = getattr(sampling, "logprobs", None)
    if isinstance(sampling, ChatCompletion):
        if sampling.top_logprobs and not sampling.logprobs:
            raise wrong_field("top_logprobs", "wanted logprobs: true with it")
        wanted = (sampling.top_logprobs or 0) if sampling.logprobs else None
    if wanted is None and isinstance(sampling, TextCompletion) and sampling.best_of is not None:
        wanted = 0  # by which texts are compared
    count = sampling.n_probs or wanted
    if count is None:
        return {}
    if count > limits.logprobs:
        raise wrong_field("logprobs", f"at most {limits.logprobs} are wanted, got {count}")
    echoed = isinstance(sampling, Completion) and sampling.echo
    after = bool(sampling.post_sampling_probs)
    return {"logprobs": count, "post_sampling_probs": after, "prompt_logprobs": count if echoed else None}


def _stops(stop: str | list[str], limits: RequestLimits) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop
    if len(texts) > limits.stops or any(len(text) > limits.stop_chars for text in texts):
        most = f"at most {limits.stops} texts of at most {limits.stop_chars} characters"
        raise wrong_field("stop", f"{most} are wanted")
    return tuple(text for text in texts if text)


def _breakers(texts: list[str], limits: RequestLimits) -> tuple[str, ...]:
    if len(texts) > limits.breakers:
        raise wrong_field("dry_sequence_breakers", f"at most {limits.breakers} texts are wanted")
    return tuple(texts)


def _biases(
    biases: dict[str, float | bool] | list[Any] | None, limits: RequestLimits, tokenizer: Tokenizer
) -> dict[int, float]:
    """Token id -> what is added to its logit. A token is an id, or a text with all its tokens."""
    if biases is None:
        return {}
    pairs = list(biases.items()) if isinstance(biases, Mapping) else biases
    if len(pairs) > limits.logit_biases:
        raise wrong_field("logit_bias", f"at most {limits.logit_biases} are wanted, got {len(pairs)}")
    by_token: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise wrong_field("logit_bias", "wanted pairs of a token and its bias")
        token, bias = pair
        if bias is False:
            bias = FORBIDDEN
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise wrong_field("logit_bias", f"wanted a number, or false, as a bias; got {bias!r:.40}")
        for token_id in _tokens(token, tokenizer):
            by_token[token_id] = _float_of(bias)
    return by_token


def _float_of(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond all of them
        raise wrong_field("logit_bias", "wanted a finite number as a bias") from None


def _tokens(token: object, tokenizer: Tokenizer) -> list[int]:
    if isinstance(token, str) and ID.fullmatch(token):
        token = int(token)
    if isinstance(token, str):
        return tokenizer.encode(token, add_special=False, parse_special=False)  # a text is no control token
    if isinstance(token, bool) or not isinstance(token, int):
        raise wrong_field("logit_bias", f"wanted a token's id or text, got {token!r:.40}")
    return (
        [token] if 0 <= token < tokenizer.n_vocab else []
    )  # ids of others are ignored, as llama-server does


def _structure(sampling: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """The grammar or schema that the text follows; of several the request's own field counts first."""
    if sampling.regex:
        return {"grammar": "", "json_schema": "", "regex": sampling.regex}
    if sampling.json_schema is not None and not sampling.grammar:
        schema = sampling.json_schema
        if schema == {}:
            schema = {"type": "object"}
        return {"json_schema": _schema("json_schema", schema, limits)}
    if sampling.grammar:
        if len(sampling.grammar) > limits.grammar_chars:
            raise wrong_field("grammar", f"at most {limits.grammar_chars} characters are wanted")
        return {"grammar": sampling.grammar}
    return {} if sampling.response_format is None else _response_format(sampling.response_format, limits)


def _response_format(response_format: dict[str, Any], limits: RequestLimits) -> dict[str, Any]:
    kind = response_format.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        schema = response_format.get("schema")
        return {
            "json_schema": _schema(
                "response_format", {"type": "object"} if schema is None else schema, limits
            )
        }
    if kind == "json_schema":
        stated = response_format.get("json_schema")
        if not isinstance(stated, dict):
            raise wrong_field("response_format", "wanted an object as json_schema")
        return {"json_schema": _schema("response_format", stated.get("schema", {}), limits)}
    raise wrong_field("response_format", f"wanted text, json_object or json_schema as type; got {kind!r:.40}")


def _schema(name: str, schema: object, limits: RequestLimits) -> str:
    """A schema as JSON; its size is known before anything walks it."""
    check_json_chars(schema, limits.grammar_chars, name)
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise wrong_field(name, "wanted a JSON schema") from None
    if not isinstance(schema, dict | bool):
        raise wrong_field(name, f"wanted a JSON schema as an object; got {json_type(schema)}")
    text = json.dumps(schema)
    if len(text) > limits.grammar_chars:
        raise wrong_field(name, f"at most {limits.grammar_chars} characters are wanted")
    return text


def _checked(base: SamplingParams, changes: dict[str, Any]) -> SamplingParams:
    make: Callable[..., SamplingParams] = replace
    try:
        return make(base, **changes)
    except UsageError as error:
        name = str(error).split(":")[0]
        raise wrong_field(name, str(error).partition(": ")[2]) from None


def described(settings: RequestSettings, sampling: Sampling, n_predict: int) -> dict[str, Any]:
    """The settings as llama-server's `generation_settings` writes them."""
    params = settings.params
    same = {name: getattr(params, name) for name in TOLD}
    return {
        "seed": 2**32 - 1 if settings.seed is None else settings.seed, **same, "top_k": params.top_k,
        "dry_sequence_breakers": params.dry_sequence_breakers, "stop": params.stop,
        "max_tokens": n_predict, "n_predict": n_predict, "n_keep": sampling.n_keep or 0, "n_discard": 0,
        "ignore_eos": settings.ignore_eos, "stream": bool(sampling.stream),
        "logit_bias": [{"bias": bias, "token": token} for token, bias in params.logit_bias.items()],
        "n_probs": sampling.n_probs or 0, "grammar": params.grammar, "grammar_lazy": False,
        "grammar_triggers": [], "preserved_tokens": [], "chat_format": "Content-only",
        "reasoning_format": "none", "reasoning_in_content": False, "generation_prompt": "",
        "samplers": params.samplers.split(";") if params.samplers else [],
        "speculative.types": SHOWN[params.spec_type], "timings_per_token": bool(sampling.timings_per_token),
        "post_sampling_probs": bool(sampling.post_sampling_probs), "backend_sampling": False,
        "lora": sampling.lora or [],
    }  # fmt: skip
