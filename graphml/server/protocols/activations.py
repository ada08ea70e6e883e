"""`/v1/activations`: captured values of a prompt and of what follows it, with patches and control vectors.

What a client sends is numbers alone: lists, or safetensors files in base64. Knows this protocol, which is
graphml's own; values, patches and steps are the engine's.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import Struct, field
from safetensors import numpy as safetensors
from starlette.requests import Request
from starlette.responses import Response

from graphml.api.request_probes import Probed, TooManyKindsError
from graphml.api.token_stream import Result
from graphml.errors import GraphmlError, WeightsError
from graphml.ir.op import Array
from graphml.passes.control_vectors import layer_result
from graphml.runtime.blocks.row_patches import PatchRows
from graphml.server.engine.service import Service
from graphml.server.protocols.conversations import conversation_of
from graphml.server.protocols.request_body import body_of
from graphml.server.requests.request_fields import ChatCompletion
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import unless_left
from graphml.server.responses.json_response import WholeResponse, gone

NPY, SAFETENSORS = "application/x-npy", "application/x-safetensors"
FORMATS = {"npy": NPY, "safetensors": SAFETENSORS}


class RowsPatch(Struct, kw_only=True):
    """Rows in place of a value's, or added to them: of all tokens, or of those at positions."""

    value: str
    rows: list[Any] | str
    positions: list[int] | None = None
    add: bool = False


class ControlVector(Struct, kw_only=True):
    """A direction that is added to what a layer gives to the next."""

    layer: int
    vector: list[float]
    scale: float = 1.0
    positions: list[int] | None = None


class Activations(ChatCompletion, kw_only=True):
    """`/v1/activations`. Of prompt and messages one is wanted; positions below 0 count from its end."""

    messages: list[Any] = field(default_factory=list)
    prompt: Any = None
    values: str | list[str]
    positions: list[int] | None = None
    patches: list[RowsPatch] = field(default_factory=list)
    control_vectors: list[ControlVector] = field(default_factory=list)
    format: str | None = None


async def activations(service: Service, request: Request) -> Response:
    """`POST /v1/activations`: captured values of a prompt's tokens and of those that follow."""
    if not service.options.activations:
        raise ApiError(501, "This server shows no activations. Start it with `--activations`")
    body = await body_of(service, request, Activations)
    form = _checked(body, request.headers.get("accept", ""))

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        settings = service.settings(body)
        if body.messages:
            prompt = conversation_of(service, body, settings.params)
            return [list(prompt.ids)], replace(settings, params=prompt.params)
        every = service.prompts_of(body.prompt)
        if len(every) != 1:
            raise wrong_field("prompt", f"wanted one prompt, got {len(every)}")
        return every, settings

    def probed(ids: list[int], settings: RequestSettings) -> Probed:
        places = None if body.positions is None else _places(body.positions, len(ids))
        most = service.access.n_ctx if settings.max_tokens is None else len(ids) + settings.max_tokens
        n_rows = min(most, service.access.n_ctx) if places is None else len(places)
        _check_size(service, body.values, n_rows, form)
        return Probed(body.values, _patches(service, body, len(ids)), positions=places)

    try:
        (generation,) = await service.begin(request, body, prompts, probed)
        results = await unless_left(request.receive, generation.finished(), generation.cancel)
    except TooManyKindsError as error:
        raise ApiError(429, str(error)) from None
    except WeightsError:
        if not (body.patches or body.control_vectors):
            raise
        raise wrong_field("patches", "the logits behind them are no numbers: wanted smaller rows") from None
    if results is None:
        return gone()
    about = {"model": service.answers_as, "n_prompt": len(generation.ids)}
    return await service.access.in_thread(request, _written, body, form, generation.ids, results[0], about)


def _checked(body: Activations, accept: str) -> str:
    """The format of the answer; defaults that are others than those of completions are filled in."""
    form = body.format or ("npy" if NPY in accept else "safetensors")
    if form not in FORMATS:
        raise wrong_field("format", f"wanted one of {', '.join(FORMATS)}")
    if (body.prompt is None) == (not body.messages):
        raise wrong_field("prompt", "wanted a prompt or messages, and not both")
    if body.stream:
        raise wrong_field("stream", "wanted none: values come when the last is computed")
    if all(limit is None for limit in (body.n_predict, body.max_completion_tokens, body.max_tokens)):
        body.max_tokens = 0
    body.spec_type = body.spec_type or "none"
    return form


def _check_size(service: Service, values: str | list[str], n_rows: int, form: str) -> None:
    """ApiError 400 where an answer would be too large, which says how large, or not one array for npy."""
    engine, most = service.access.engine, service.options.limits.activation_bytes
    if engine is None:
        return  # submission is refused
    row_bytes = engine.capture_bytes(values)
    if not row_bytes:
        raise wrong_field("values", "wanted a name or a pattern, or a list with some")
    if form == "npy" and len(row_bytes) != 1:
        raise wrong_field("format", f"npy is for one value, got {len(row_bytes)}; wanted safetensors")
    if (n_bytes := sum(row_bytes.values()) * n_rows) > most:
        raise wrong_field(
            "values",
            f"{len(row_bytes)} values of {n_rows} tokens are {n_bytes:,} bytes; at most {most:,} are "
            "wanted: name fewer values, or positions",
        )


def _places(positions: list[int], n_prompt: int) -> list[int]:
    """Positions from the prompt's begin; ApiError 400 for one before it."""
    for place in positions:
        if place < -n_prompt:
            raise wrong_field(
                "positions", f"wanted {-n_prompt} or more, for a prompt of {n_prompt}; got {place}"
            )
    return [place + n_prompt if place < 0 else place for place in positions]


def _patches(service: Service, body: Activations, n_prompt: int) -> dict[str, PatchRows]:
    """The patches of a request by the values that they are of; ApiError 400 for two of one."""
    named = [(patch.value, _rows(patch.rows), patch.positions, patch.add) for patch in body.patches]
    users = service.model.executor.build(1, 1).users() if body.control_vectors else {}
    for vector in body.control_vectors:
        try:
            name = layer_result(users, vector.layer, len(vector.vector)).name
        except GraphmlError as error:
            raise wrong_field("control_vectors", str(error)) from None
        with np.errstate(over="ignore"):
            rows = np.array(vector.vector) * vector.scale
        if not np.isfinite(rows).all():
            raise wrong_field("control_vectors", f"layer {vector.layer}: wanted finite numbers, scaled too")
        named.append((name, rows, vector.positions, True))
    patches: dict[str, PatchRows] = {}
    for name, rows, positions, add in named:
        if name in patches:
            raise wrong_field("patches", f"wanted one patch or control vector of {name}, got two")
        patches[name] = PatchRows(rows, positions and _places(positions, n_prompt), add)
    return patches


def _rows(rows: list[Any] | str) -> Array:
    """Numbers of nested lists, or of the one tensor of a safetensors file in base64."""
    if isinstance(rows, list):
        try:
            return np.array(rows, np.float64)
        except (ValueError, TypeError, OverflowError):
            raise wrong_field("patches", "rows: wanted numbers in lists of one shape") from None
    try:
        (array,) = safetensors.load(base64.b64decode(rows, validate=True)).values()
    except Exception as error:  # the library's own, and those of a wrong header
        problem = f"rows: wanted a safetensors file with one tensor, in base64: {type(error).__name__}"
        raise wrong_field("patches", problem) from None
    return array


def _written(body: Activations, form: str, ids: list[int], result: Result, about: dict[str, Any]) -> Response:
    """The answer; about: what else a safetensors file says, as JSON in its metadata."""
    captured = {name: np.ascontiguousarray(rows) for name, rows in result.captured.items()}
    if form == "npy":
        (rows,) = captured.values()
        file = io.BytesIO()
        np.save(file, rows, allow_pickle=False)
        return WholeResponse(file.getvalue(), media_type=NPY)
    places = None if body.positions is None else sorted(_places(body.positions, len(ids)))
    n_rows = max(map(len, captured.values()), default=0)
    about |= {"positions": places and places[:n_rows], "tokens": [*ids, *result.tokens]}
    about |= {"text": result.text, "stop_reason": result.stop_reason}
    metadata = {name: json.dumps(value) for name, value in about.items()}
    return WholeResponse(safetensors.save(captured, metadata), media_type=FORMATS[form])
