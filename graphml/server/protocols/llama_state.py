"""What a server reports of a model: slots, adapters and metrics.

Knows the model and the engine's counts; a slot is a sequence's place in the engine. Nothing of prompts.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from graphml.server.engine.running_request import Generation
from graphml.server.engine.saved_slots import ACTIONS
from graphml.server.engine.served_models import ServedModels
from graphml.server.engine.service import LARGEST_SCALE, ClosedModel, Service
from graphml.server.observing.server_metrics import key_metrics, process_metrics
from graphml.server.protocols.request_body import body_of, read_body
from graphml.server.requests.request_fields import Sampling, SlotFile
from graphml.server.requests.sampling_settings import described
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import EventStream
from graphml.server.responses.json_response import json_response


async def set_props(service: Service, request: Request) -> Response:
    """`POST /props`."""
    if not service.options.props:
        raise ApiError(
            501, "This server does not support changing global properties. Start it with `--props`"
        )
    return json_response({"success": True})


async def slots(service: Service, request: Request) -> Response:
    """`GET /slots`: each place of the engine, and the sequence that has it."""
    if not service.options.slots:
        raise ApiError(501, "This server does not support slots endpoint. Start it with `--slots`")
    access, speculates = service.access, service.options.params.spec_type != "none"
    key = request.scope.get("graphml.key")
    shown: list[dict[str, Any]] = [
        {"id": number, "n_ctx": access.n_ctx, "speculative": speculates, "is_processing": False}
        for number in range(service.options.parallel)
    ]
    for generation in list(access.active.values()):
        for sequence in generation.sequences:
            number = sequence.slot
            if 0 <= number < len(shown):
                own = generation.key == key or service.is_admin(key)
                shown[number] |= _slot(generation, sequence) | ({} if own else {"params": {}})
    if request.query_params.get("fail_on_no_slot") == "1" and all(slot["is_processing"] for slot in shown):
        raise ApiError(503, "no slot is free")
    return json_response(shown)


def _slot(generation: Generation, sequence: Any) -> dict[str, Any]:
    settings, n_prompt = generation.settings, len(generation.ids)
    generated, cached = sequence.n_generated, max(0, sequence.n_cached)
    most = -1 if settings.max_tokens is None else settings.max_tokens
    left = -1 if most < 0 else most - generated
    state = "GENERATING" if generated else "PROCESSING_PROMPT"
    return {
        "is_processing": True, "id_task": generation.number, "state": state, "n_prompt_tokens": n_prompt,
        "n_prompt_tokens_processed": min(n_prompt, sequence.n_computed) - cached,
        "n_prompt_tokens_cache": cached,
        "params": described(settings, Sampling(), most),
        "next_token": [
            {"has_next_token": True, "has_new_line": False, "n_remain": left, "n_decoded": generated}
        ],
    }  # fmt: skip


async def change_slot(service: Service, request: Request) -> Response:
    """`POST /slots/N`: save, restore, erase."""
    if service.options.slot_save_path is None:
        raise ApiError(501, "This server does not support slots action. Start it with `--slot-save-path`")
    if service.access.engine is None:
        raise ApiError(501, "this server embeds texts and generates none")
    action = request.query_params.get("action", "")
    if action not in ACTIONS:
        raise wrong_field("action", f"wanted {', '.join(ACTIONS)}; got {action!r:.40}")
    number: int = request.path_params["slot"]
    if not 0 <= number < service.options.parallel:
        raise wrong_field("id_slot", f"wanted a slot from 0 to {service.options.parallel - 1}, got {number}")
    named = None if action == "erase" else await body_of(service, request, SlotFile)
    engine, key = service.access.engine, request.scope.get("graphml.key")
    whose = None if service.is_admin(key) else key
    slots, keys = service.access.slots, service.access.keys

    def extra_of(owner: str | None) -> bytes:
        return engine.prefix_extra(service.access.adapters(), service.salt_of_key(owner))

    def changed() -> dict[str, Any]:
        # What an admin saves of another key's slot is that key's, which alone can restore it.
        owner = slots.owner(number, key) if action == "save" and whose is None else key
        folder = keys.folder_of(None if service.is_admin(owner) else owner)
        path = None if named is None else slots.path(named, folder)
        return slots.change(engine, action, number, extra_of, path, key, whose)

    return json_response(await service.access.in_thread(request, changed))


async def resumed(models: ServedModels, request: Request) -> EventStream:
    """`GET /v1/stream?conv_id=NAME&from=N`: a stream from event N on, by default behind `Last-Event-ID`."""
    name, last = request.query_params.get("conv_id", ""), request.headers.get("last-event-id")
    text = request.query_params.get("from", "0" if last is None else last)
    if not text.isdecimal() or len(text) > 18:
        raise wrong_field("from", f"wanted the number of an event, got {text!r:.40}")
    begin = int(text) + ("from" not in request.query_params and last is not None)
    recording, options = models.shared.streams.find((request.scope.get("graphml.key"), name)), models.options
    events = recording.read(begin)
    return EventStream(events, options.ping, options.timeout, lambda: None, recording.style)


async def end_stream(models: ServedModels, request: Request) -> Response:
    """`DELETE /v1/stream?conv_id=NAME`: nobody reads a stream on; its answer ends."""
    models.shared.streams.end((request.scope.get("graphml.key"), request.query_params.get("conv_id", "")))
    return Response(status_code=204)


async def lora_adapters(service: Service, request: Request) -> Response:
    """`GET /lora-adapters`."""
    loras = zip(service.options.loras, service.access.lora_scales, strict=True)
    shown = [{"id": i, "path": path.name, "scale": scale} for i, ((path, _), scale) in enumerate(loras)]
    return json_response(shown)


def _adapters(raw: bytes) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(raw, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body: wanted a list of adapters: {error}"[:300]) from None


async def set_lora_adapters(service: Service, request: Request) -> Response:
    """`POST /lora-adapters`: the scales of later requests; adapters that are not named count 0."""
    if not service.is_admin(request.scope.get("graphml.key")):
        raise ApiError(403, "this key may not change what others get; name the adapters in a request")
    adapters = await read_body(service, request, _adapters)
    scales = [0.0] * len(service.options.loras)
    for adapter in adapters:
        number: Any = adapter.get("id")
        scale: Any = adapter.get("scale")
        known = type(number) is int and 0 <= number < len(scales)
        if not known or type(scale) not in (int, float) or not abs(scale) <= LARGEST_SCALE:
            raise wrong_field("id", "wanted objects with the id of an adapter and a scale")
        scales[number] = float(scale)
    service.access.lora_scales = scales
    return json_response({"success": True})


async def metrics(models: ServedModels, request: Request) -> Response:
    """`GET /metrics`: counts in Prometheus' text format.

    Gauges of an engine are of the model of `?model=`, or of the one that requests without a name get.
    """
    shared, name = models.shared, request.query_params.get("model")
    if not shared.options.metrics:
        raise ApiError(501, "This server does not support metrics endpoint: `--no-metrics` is set")
    service = models.known(name) if name or models.has_first else None
    shares = [(place, use, shared.in_flight.running_of(owner)) for place, owner, use in shared.keys.uses()]
    stats, asleep = (None, False) if service is None else (service.stats(), isinstance(service, ClosedModel))
    text = shared.metrics.text(stats) + key_metrics(shares) + process_metrics(asleep)
    headers = {"Process-Start-Time-Unix": str(int(shared.metrics.began))}
    return Response(text, 200, headers, "text/plain; version=0.0.4")
