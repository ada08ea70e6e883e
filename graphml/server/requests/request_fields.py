"""Bodies of requests as typed values: JSON in, a 400 with the field's name for a wrong type or range.

Fields that are not known are ignored, as OpenAI does; null is as if a field was not there. Knows names, types
and ranges of fields; nothing of models.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from graphml.errors import json_type
from graphml.server.responses.api_errors import ApiError, wrong_field

T = TypeVar("T")
INT_MAX = 2**31 - 1
Probability = Annotated[float, Meta(ge=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=INT_MAX)]
Tokens = Annotated[int, Meta(ge=-1, le=INT_MAX)]
AtLeastOne = Annotated[int, Meta(ge=1, le=INT_MAX)]
Penalty = Annotated[float, Meta(ge=-1e6, le=1e6)]


class StreamOptions(Struct, kw_only=True):
    """What a stream reports besides its text."""

    include_usage: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """Settings of sampling that every protocol has under these names."""

    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: NotNegative | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT_MAX)] | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    typical_p: Probability | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=INT_MAX)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: NotNegative | None = None
    mirostat_eta: NotNegative | None = None


class Sampling(SamplingFields, kw_only=True):
    """What all endpoints that generate have in common: OpenAI's fields and llama-server's."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n_predict: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    n: AtLeastOne | None = None
    n_cmpl: AtLeastOne | None = None
    logit_bias: dict[str, float | bool] | list[Any] | None = None
    top_n_sigma: float | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dynatemp_range: NotNegative | None = None
    dynatemp_exponent: NotNegative | None = None
    dry_multiplier: float | None = None
    dry_base: NotNegative | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=INT_MAX)] | None = None
    dry_sequence_breakers: list[str] | None = None
    adaptive_target: Annotated[float, Meta(ge=-1, le=1)] | None = None
    adaptive_decay: Annotated[float, Meta(ge=0, le=0.99)] | None = None
    min_keep: Count | None = None
    samplers: str | list[str] | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    open_objects: bool | None = None
    response_format: dict[str, Any] | None = None
    n_probs: Count | None = None
    post_sampling_probs: bool | None = None
    n_keep: Tokens | None = None
    cache_prompt: bool | None = None
    n_cache_reuse: int | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    verbose: bool | None = None
    sse_ping_interval: Annotated[int, Meta(ge=-1, le=INT_MAX)] | None = None
    id_slot: int | None = None
    lora: list[dict[str, Any]] | None = None
    priority: int | None = None
    deadline: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    user: str | None = None
    spec_type: str | None = field(default=None, name="speculative.type")
    spec_n_max: Count | None = field(default=None, name="speculative.n_max")
    spec_n_min: Count | None = field(default=None, name="speculative.n_min")
    diffusion_steps: AtLeastOne | None = None
    diffusion_block_length: Count | None = None
    diffusion_eps: Probability | None = None
    diffusion_algorithm: int | str | None = None
    diffusion_alg_temp: NotNegative | None = None
    diffusion_cfg_scale: NotNegative | None = None


class Completion(Sampling, kw_only=True):
    """`/completion`, and what `/v1/completions` has in common with it."""

    prompt: Any = ""
    echo: bool | None = None
    logprobs: Count | None = None
    response_fields: list[str] | None = None


class TextCompletion(Completion, kw_only=True):
    """`/v1/completions` alone. best_of: so many are generated, and the most likely told."""

    best_of: AtLeastOne | None = None
    suffix: str | None = None


class ChatCompletion(Sampling, kw_only=True):
    """`/v1/chat/completions`."""

    messages: list[Any]
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    return_denoising: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_format: str | None = None
    reasoning_effort: str | None = None
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget_message: str | None = None
    reasoning_control: bool | None = None


class Control(Struct, kw_only=True):
    """`/v1/chat/completions/control`: what is to happen to the answer of this id."""

    id: str = ""
    action: str = ""


class SlotFile(Struct, kw_only=True):
    """`/slots/N`: the file to save to, or to restore from."""

    filename: str


class LoadModel(Struct, kw_only=True):
    """`/models/load` and `/models/unload`: a model by its name."""

    model: str


class Tokenize(Struct, kw_only=True):
    """`/tokenize`. prompt, add_special_tokens: vLLM's names of content and add_special, which is on there."""

    model: str | None = None
    content: str | list[Any] = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    prompt: str | None = None
    add_special_tokens: bool = True


class Detokenize(Struct, kw_only=True):
    """`/detokenize`."""

    model: str | None = None
    tokens: list[int] = []


class Embeddings(Struct, kw_only=True):
    """`/v1/embeddings`, and llama-server's."""

    input: Any = None
    content: Any = None
    model: str | None = None
    encoding_format: str | None = None
    dimensions: AtLeastOne | None = None
    embd_normalize: int | None = None


class Rerank(Struct, kw_only=True):
    """`/v1/rerank`; `texts` is the name that text-embeddings-inference has."""

    query: str
    documents: list[str] | None = None
    texts: list[str] | None = None
    top_n: Count | None = None
    return_text: bool | None = None
    model: str | None = None


class Infill(Sampling, kw_only=True):
    """`/infill`."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Any] | None = None
    prompt: str = ""
    response_fields: list[str] | None = None
    logprobs: Count | None = None


def chat_of(**fields: Any) -> ChatCompletion:
    """A conversation of another protocol's fields, checked as one that a client sends."""
    return converted(fields, ChatCompletion)


_AT = re.compile(r" - at `(?:key in )?\$(?:\.)?(.*)`$", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: ([<>]=?) (\S+?)(?:\.0)?)?(?:, got `(\w+)`)?$")
_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "array": "a list",
    "object": "an object", ">=": "of at least", "<=": "of at most", ">": "above", "<": "below",
}  # fmt: skip
_MISSING = re.compile(r"missing required field `(\w+)`")


def decoded(body: bytes, kind: type[T]) -> T:
    """The body as a value of that kind; ApiError 400 naming the field."""
    return converted(as_object(body), kind)


def _number(text: str) -> float:
    """A number with a fraction or exponent: other threads go on meanwhile, as this is Python's."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")
    return number


_DECODE = msgspec.json.Decoder(float_hook=_number).decode


def as_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; ApiError 400 for anything else."""
    try:
        decoded = _DECODE(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no JSON: {error}"[:300]) from None
    if not isinstance(decoded, dict):
        raise ApiError(400, f"the body: wanted a JSON object, got {json_type(decoded)}")
    return decoded


def converted(body: dict[str, Any], kind: type[T]) -> T:
    """An object as a value of that kind; ApiError 400 naming the field."""
    names: tuple[str, ...] = getattr(kind, "__struct_encode_fields__", ())
    fields = {name: value for name in names if (value := body.get(name)) is not None}
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        text = str(error)
    if missing := _MISSING.search(text):
        raise wrong_field(missing[1], "it is missing")
    place = _AT.search(text)
    whole = place[1] if place else "body"
    name = whole.split("[")[0]
    name = name if name in names else name.split(".")[0]
    where = "" if whole == name else f"{whole}: "
    raise wrong_field(name, where + _in_words(text.split(" - at ")[0], None if where else fields.get(name)))


def _in_words(text: str, value: Any) -> str:
    """msgspec's text about a value as what was wanted and what came. value: None: only its type is shown."""
    if (expected := _EXPECTED.match(text)) is None:
        return text
    kinds, bound, limit, got = expected.groups()
    wanted = " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))
    wanted = wanted.replace(" or ", ", ", wanted.count(" or ") - 1)
    wanted += f" {_WORDS[bound]} {limit}" if bound else ""
    is_shown = isinstance(value, str | int | float)
    came = f"{json.dumps(value, ensure_ascii=False):.40}" if is_shown else _WORDS.get(got, got)
    return f"wanted {wanted}, got {came}" if came else f"wanted {wanted}"
