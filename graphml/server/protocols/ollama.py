"""ollama's protocol: chats, completions and embeddings, and what its clients ask of a model.

Knows that protocol, and turns it into conversations; see https://docs.ollama.com/api. Streams are JSON lines,
and are the default. The model stays as the server was started: `num_ctx` must fit, `keep_alive` is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from graphml.api.text_rows import cut_rows, normalized
from graphml.bench.describe import describe_file
from graphml.errors import GraphmlError
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.server.access.text_limits import check_chars
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import Service
from graphml.server.protocols.answers import Answering, PlainReader, answering
from graphml.server.protocols.embeddings import embedded_texts
from graphml.server.protocols.openai_chat import ended
from graphml.server.protocols.request_body import body_of, limited_body, off_loop
from graphml.server.protocols.shown_logprobs import entries
from graphml.server.requests.request_fields import (
    INT_MAX,
    AtLeastOne,
    ChatCompletion,
    Count,
    Embeddings,
    SamplingFields,
    Tokens,
    as_object,
    chat_of,
    converted,
)
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import EventStream, encode, line
from graphml.server.responses.json_response import gone, joined, json_response
from graphml.text.answers import ContentDelta, ReasoningDelta, ToolCall, format_of, marks_of
from graphml.text.chat_template import DEFAULT_NAME
from graphml.weights.file_names import is_gguf

PROTOCOL = "0.12.11"
"""The version of ollama whose protocol this is: clients compare it with what they need."""
NEVER = "2318-01-01T00:00:00Z"
"""When a model is unloaded that stays: ollama has such a year, too."""
Parts = dict[str, Any]


class OllamaOptions(SamplingFields, kw_only=True):
    """`options`, as far as they are of a request. Those of loading, and unknown ones, are not read."""

    num_ctx: Count | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=INT_MAX)] | None = None
    num_keep: Tokens | None = None


SAME_OPTIONS = [name for name in OllamaOptions.__struct_fields__ if not name.startswith("num_")]
"""Options with the names that llama-server has for them."""


class OllamaRequest(Struct, kw_only=True):
    """What `/api/chat` and `/api/generate` have in common."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    options: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None


class OllamaChat(OllamaRequest, kw_only=True):
    """`/api/chat`."""

    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None


class OllamaGenerate(OllamaRequest, kw_only=True):
    """`/api/generate`."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[Any] | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbed(Struct, kw_only=True):
    """`/api/embed`. truncate: cut texts that are too long, which is the default."""

    input: str | list[str]
    model: str | None = None
    truncate: bool | None = None
    dimensions: AtLeastOne | None = None
    options: dict[str, Any] | None = None


class OllamaEmbeddings(Struct, kw_only=True):
    """`/api/embeddings`, which came before `/api/embed`."""

    prompt: str
    model: str | None = None
    options: dict[str, Any] | None = None


class OllamaPull(Struct, kw_only=True):
    """`/api/pull`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: bool | None = None


class OllamaShow(Struct, kw_only=True):
    """`/api/show`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


async def chat(service: Service, request: Request) -> Response | EventStream:
    """`POST /api/chat`: the answer to a conversation, as JSON lines."""
    body = await body_of(service, request, OllamaChat)
    if not body.messages:
        return _loaded(service, message={"role": "assistant", "content": ""})

    def asked() -> ChatCompletion:
        messages = [_message(index, message) for index, message in enumerate(body.messages)]
        return _as_chat(service, body, messages, body.tools)

    conversation = await off_loop(request, asked)

    def shape(content: str, **parts: Any) -> Parts:
        return {"message": {"role": "assistant", "content": content, **parts}}

    return await _answered(service, request, body, await answering(service, request, conversation), shape)


async def generate(service: Service, request: Request) -> Response | EventStream:
    """`POST /api/generate`: what follows a prompt, or stands before a suffix, as JSON lines."""
    body = await body_of(service, request, OllamaGenerate)
    for name in ("images", "template", "context"):
        if getattr(body, name):
            reasons = {"images": "this model reads no images", "context": "wanted messages for `/api/chat`"}
            raise wrong_field(name, reasons.get(name, "wanted the model's own template"))
    if not (body.prompt or body.suffix):
        return _loaded(service, response="")
    roles = {"system": body.system, "user": body.prompt}
    messages = [{"role": role, "content": text} for role, text in roles.items() if text]
    asked = await off_loop(request, _as_chat, service, body, messages)
    formatted = service.model.has_template or body.system  # without a template a system text needs ChatML
    if body.raw or body.suffix or not formatted:
        reply = await _unformatted(service, request, body, asked)
    else:
        reply = await answering(service, request, asked)

    def shape(content: str, **parts: Any) -> Parts:
        return {"response": content, **parts}

    return await _answered(service, request, body, reply, shape)


async def embed(service: Service, request: Request) -> Response:
    """`POST /api/embed`: texts as vectors of length 1."""
    body, begin = await body_of(service, request, OllamaEmbed), time.monotonic()
    _options(service, body.options)
    every, rows = await embedded_texts(
        service, Embeddings(input=body.input), request, truncated=body.truncate is not False
    )

    def written() -> msgspec.Raw:
        # ollama leaves a row whole that has fewer numbers.
        most = None if body.dimensions is None or not rows else min(body.dimensions, rows[0].shape[1])
        vectors = (normalized(cut_rows(row[:1], most, "mean"))[0].tolist() for row in rows)
        return joined([encode(vector) for vector in vectors])

    vectors = await service.access.in_thread(request, written)
    spent = {"total_duration": _ns(time.monotonic() - begin), "load_duration": 0}
    counts = {"prompt_eval_count": sum(map(len, every))}
    return json_response({"model": service.answers_as, "embeddings": vectors, **spent, **counts})


async def embeddings(service: Service, request: Request) -> Response:
    """`POST /api/embeddings`: one text as a vector of length 1, as older clients of ollama ask for it."""
    body = await body_of(service, request, OllamaEmbeddings)
    _options(service, body.options)
    _, (row,) = await embedded_texts(service, Embeddings(input=body.prompt), request, truncated=True)
    return json_response({"embedding": normalized(row[:1])[0].tolist()})


async def pull(models: ServedModels, request: Request) -> Response:
    """`POST /api/pull`: success for a model that is served, a 404 for another: no server downloads."""
    body = converted(await limited_body(models.options.limits, request, as_object), OllamaPull)
    name = body.model or body.name or ""
    plain = name.removesuffix(":latest")
    if not any(plain in models.names_of(known) for known in list(models.room.entries)):
        known = ", ".join(sorted(models.room.entries))
        raise ApiError(
            404, f"pull: {name!r:.200} is not served here, which is {known}; `graphml pull` downloads models"
        )
    done = {"status": "success"}
    if body.stream is False:
        return json_response(done)
    return Response(line({"status": "pulling manifest"}) + line(done), 200, {}, "application/x-ndjson")


async def tags(models: ServedModels, request: Request) -> Response:
    """`GET /api/tags`: the models that are served; details of those that are loaded."""
    known = ((name, models.last(name)) for name in list(models.room.entries))
    shown = [_full_tag(x) if isinstance(x, Service) else _tag(name) for name, x in known]
    return json_response({"models": shown})


def _tag(name: str) -> Parts:
    """A model that is not loaded."""
    none = {"parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
            "quantization_level": ""}  # fmt: skip
    began = _written(datetime.fromtimestamp(0, UTC))
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "modified_at": began, "size": 0, "digest": digest, "details": none}


def _full_tag(service: Service) -> Parts:
    path = service.model.path
    # Hashing the file would take long; clients only compare it.
    digest = hashlib.sha256(f"{path.name} {_changed_at(path)}".encode()).hexdigest()
    size = service.model.executor.file.n_weight_bytes
    shown = {"name": service.name, "model": service.name, "modified_at": _modified(service), "size": size}
    return {**shown, "digest": digest, "details": _details(service)}


async def ps(models: ServedModels, request: Request) -> Response:
    """`GET /api/ps`: the models that are in memory; none that sleeps."""
    every = [models.last(name) for name in list(models.room.entries)]
    return json_response({"models": [_running(x) for x in every if isinstance(x, Service)]})


def _running(service: Service) -> Parts:
    model = _full_tag(service)
    del model["modified_at"]
    return {**model, "expires_at": NEVER, "size_vram": 0, "context_length": service.access.n_ctx}


async def show(service: Service, request: Request) -> Response:
    """`POST /api/show`: template, metadata and capabilities of the model that is served."""
    await body_of(service, request, OllamaShow)
    metadata, tokenizer = service.model.executor.file.metadata, service.model.tokenizer
    hidden = "tokenizer.chat_template"  # it is told as the template
    about = {key: metadata[key] for key in metadata if not metadata.is_array(key) and key != hidden}
    about["general.parameter_count"] = describe_file(service.model.executor.file)["model_n_params"]
    template = "" if tokenizer is None else service.templates[DEFAULT_NAME].source
    parameters = f"num_ctx {service.access.n_ctx}\ntemperature {service.options.params.temperature}"
    return json_response({
        "modelfile": "", "parameters": parameters, "template": template, "details": _details(service),
        "model_info": about, "capabilities": _capabilities(service), "modified_at": _modified(service),
    })  # fmt: skip


async def version(models: ServedModels, request: Request) -> Response:
    """`GET /api/version`: the version of ollama whose protocol this is."""
    return json_response({"version": PROTOCOL})


def _options(service: Service, options: dict[str, Any] | None) -> OllamaOptions:
    read = converted(options or {}, OllamaOptions)
    if read.num_ctx is not None and read.num_ctx > (n_ctx := service.access.n_ctx):
        more = f"{n_ctx} tokens are served (`-c`)"
        raise wrong_field("num_ctx", f"wanted at most {n_ctx}, got {read.num_ctx}: {more}")
    return read


def _as_chat(
    service: Service,
    body: OllamaRequest,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
) -> ChatCompletion:
    """The request as one of OpenAI's protocol."""
    options = _options(service, body.options)
    fields: dict[str, Any] = {name: getattr(options, name) for name in SAME_OPTIONS}
    fields["n_keep"] = options.num_keep
    fields["n_predict"] = -1 if options.num_predict == -2 else options.num_predict  # -2: all of the context
    if body.think and not _thinks(service):
        raise wrong_field("think", "this model does not think")
    if isinstance(body.think, str):
        fields["reasoning_effort"] = body.think
        fields["chat_template_kwargs"] = {"enable_thinking": True}
    elif body.think is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": body.think}
    if body.format:
        fields["response_format"] = _format(body.format)
    return chat_of(
        messages=messages,
        stream=body.stream is not False,
        tools=tools,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        **fields,
    )


def _format(form: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(form, dict):
        return {"type": "json_schema", "json_schema": {"schema": form}}
    if form != "json":
        raise wrong_field("format", f"wanted json or a schema, got {form!r:.40}")
    return {"type": "json_object"}


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message as OpenAI's."""
    if message.get("images"):
        raise wrong_field("messages", f"messages[{index}].images: this model reads no images")
    names = {"thinking": "reasoning_content", "tool_name": "name"}
    renamed = {names.get(name, name): value for name, value in message.items() if value is not None}
    renamed.pop("images", None)
    return renamed


async def _unformatted(
    service: Service, request: Request, body: OllamaGenerate, asked: ChatCompletion
) -> Answering:
    """What follows a prompt without a template, or stands between it and a suffix."""
    for name, text in (("prompt", body.prompt), ("suffix", body.suffix or "")):
        check_chars(text, service.options.limits.tokenized_chars, name)

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        settings = service.settings(asked)
        if not body.suffix:
            return service.prompts_of(body.prompt), settings
        most, n_ctx = settings.max_tokens, service.access.n_ctx
        return [service.model.fill_ids(body.prompt, body.suffix, max_tokens=most, n_ctx=n_ctx)], settings

    (generation,) = await service.begin(request, asked, prompts)
    return Answering(generation, [PlainReader()])


async def _answered(
    service: Service, request: Request, body: OllamaRequest, reply: Answering, shape: Callable[..., Parts]
) -> Response | EventStream:
    if body.stream is not False:
        lines = _lines(service, reply, shape)
        return EventStream(lines, 0, service.options.timeout, reply.cancel, "ollama")
    if not await ended(request, reply.finished(), reply.cancel):
        return gone()
    answer = reply.readers[0].answer
    parts = _parts(answer.reasoning, answer.tool_calls)
    scored = _scores(reply.tokens[0].logprobs)
    whole = {**_head(service), **shape(answer.content, **parts), **scored, **_end(reply)}
    return json_response(whole)


async def _lines(
    service: Service, reply: Answering, shape: Callable[..., Parts]
) -> AsyncGenerator[bytes, None]:
    answer, n_called = reply.readers[0].answer, 0
    n_scored = 0
    async for _, _, events in reply.events():
        content = "".join(part.text for part in events if isinstance(part, ContentDelta))
        thinking = "".join(part.text for part in events if isinstance(part, ReasoningDelta))
        calls, n_called = answer.tool_calls[n_called:], len(answer.tool_calls)
        if content or thinking or calls:
            parts = shape(content, **_parts(thinking, calls))
            scored = reply.tokens[0].logprobs
            yield line({**_head(service), **parts, **_scores(scored[n_scored:]), "done": False})
            n_scored = len(scored)
    yield line({**_head(service), **shape(""), **_end(reply)})


def _parts(thinking: str, calls: Sequence[ToolCall]) -> Parts:
    """What a message has besides its content."""
    parts: Parts = {"thinking": thinking} if thinking else {}
    if calls:
        parts["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.values()}} for call in calls
        ]
    return parts


def _scores(logprobs: Sequence[TokenLogprobs]) -> Parts:
    return {"logprobs": entries(logprobs)} if logprobs else {}


def _head(service: Service) -> Parts:
    return {"model": service.answers_as, "created_at": _written(datetime.now(UTC))}


def _end(reply: Answering) -> Parts:
    """Why an answer ended, its counts, and its times in nanoseconds."""
    result = reply.results[0]
    times = result.timings
    return {
        "done": True, "done_reason": "length" if reply.reason(0) == "length" else "stop",
        "total_duration": _ns(time.monotonic() - reply.generation.arrived), "load_duration": 0,
        "prompt_eval_count": result.n_prompt, "prompt_eval_duration": _ns(times.ttft_s),
        "eval_count": result.n_gen, "eval_duration": _ns(times.total_s - times.ttft_s),
    }  # fmt: skip


def _loaded(service: Service, **parts: Any) -> Response:
    """The answer to a request that only wants the model loaded: it is."""
    return json_response({**_head(service), **parts, "done": True, "done_reason": "load"})


def _ns(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def _written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _modified(service: Service) -> str:
    return _written(datetime.fromtimestamp(_changed_at(service.model.path), UTC))


def _changed_at(path: Path) -> float:
    """When a file was written; 0 for one that is gone, whose model is open still."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _details(service: Service) -> Parts:
    about = describe_file(service.model.executor.file)
    arch, size, level = about["model_type"].rsplit(" ", 2)
    form = (
        "gguf"
        if is_gguf(service.model.path.name)
        else "safetensors"
        if service.model.path.is_dir()
        else "bin"
    )
    return {"parent_model": "", "format": form, "family": arch, "families": [arch],
            "parameter_size": size, "quantization_level": level}  # fmt: skip


def _thinks(service: Service) -> bool:
    """Whether answers have reasoning that is told apart."""
    source = service.templates[DEFAULT_NAME].source
    form = format_of(source, None)
    return (form.whole is not None and form.reasoning is not None) or marks_of(source, form) is not None


def _capabilities(service: Service) -> list[str]:
    if service.access.engine is None or service.model.tokenizer is None:
        return ["embedding"]
    capabilities = ["completion", "tools", *(["thinking"] if _thinks(service) else [])]
    with contextlib.suppress(GraphmlError):
        service.model.fill_ids("", "a", n_ctx=service.access.n_ctx, max_tokens=1)
        capabilities.append("insert")
    return capabilities
