"""Spans of requests for a collector of OpenTelemetry, by its protocol over HTTP with JSON.

A request's span is a child of its caller's (W3C's `traceparent`). Where a model is used, it has a child by
the GenAI convention, and that a child for each phase: the prompt is made, the prompt is read, the answer is
generated. Knows https://opentelemetry.io/docs/specs/otlp, https://www.w3.org/TR/trace-context and
https://opentelemetry.io/docs/specs/semconv/gen-ai; sends from a thread of its own that no request waits for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import graphml
from graphml.errors import UsageError
from graphml.server.observing.request_log import EndedRequest, Generated, ModelOperation

LOG = logging.getLogger(__name__)
PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
MOST_WAITING, MOST_AT_A_TIME = 4096, 512
"""Requests whose spans wait to be sent: more are dropped; and requests that are sent together."""
EVERY_S, TIMEOUT_S, CLOSE_S = 1.0, 10.0, 0.5
SERVER, INTERNAL, ERROR = 2, 1, 2  # kinds of spans, and a status
PROVIDER = "graphml"
FINISH = {"end": "stop", "context": "length", "deadline": "length"}
"""Why an answer ended, by OpenAI's names where they are others."""
Span = dict[str, Any]
Attributes = dict[str, Any]


class TraceExport:
    """Sends spans to a collector. UsageError for what is no address; without a path it is `/v1/traces`."""

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.username is not None:
            raise UsageError(f"--otlp-endpoint: wanted an address as http://127.0.0.1:4318; got {address!r}")
        self._host, self._port, self._tls = host, port, parts.scheme == "https"
        self._path = parts.path.rstrip("/") or "/v1/traces"
        self._waiting: queue.Queue[list[Span] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._send_all, name="graphml-traces", daemon=True)
        self._thread.start()

    def __call__(self, record: EndedRequest) -> None:
        """Take the spans of a request that has ended, where its caller wants any."""
        parent = PARENT.fullmatch(record.headers.get("traceparent", ""))
        if parent is not None and not int(parent[3], 16) & 1:
            return  # the caller records nothing either
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(list(spans_of(record, parent and parent[1], parent and parent[2])))

    def close(self) -> None:
        """Send what waits, and end."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(CLOSE_S)

    def _send_all(self) -> None:
        ended = failed = False
        while not ended:
            first = self._waiting.get()
            spans, ended = list(first or ()), first is None
            end = time.monotonic() + EVERY_S
            for _ in range(MOST_AT_A_TIME - 1):
                try:
                    more = self._waiting.get(timeout=0 if ended else max(0.0, end - time.monotonic()))
                except queue.Empty:
                    break
                spans, ended = spans + (more or []), ended or more is None
            if spans:
                error = self._sent(spans)
                if error and not failed:  # once until it works again
                    LOG.warning("--otlp-endpoint: traces cannot be sent: %s", error)
                failed = bool(error)

    def _sent(self, spans: list[Span]) -> str:
        """Send spans; what went wrong, "" for nothing."""
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(
                "POST", self._path, json.dumps(_body(spans)), {"Content-Type": "application/json"}
            )
            with connection.getresponse() as response:
                return "" if response.status < 300 else f"status {response.status}"
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        finally:
            connection.close()


def spans_of(record: EndedRequest, trace: str | None, parent: str | None) -> Iterator[Span]:
    """The span of a request, that of the model's work, and those of its phases.

    trace, parent: the caller's, None for a new trace.
    """
    trace = trace or secrets.token_hex(16)
    host, port = record.server or (None, None)
    error = str(record.status) if record.status >= 500 else None
    about: Attributes = {
        "http.request.method": record.method, "url.path": record.path, "url.scheme": record.scheme,
        "http.response.status_code": record.status or None, "graphml.request_id": record.id,
        "server.address": host, "server.port": port, "error.type": error,
    }  # fmt: skip
    own = _span(trace, parent, f"{record.method} {record.path}", record, 0.0, record.seconds, about, SERVER)
    yield own
    if record.operation is None:
        return
    name, about = f"{record.operation.name} {record.operation.model}", _of_model(record, record.operation)
    about |= {"server.address": host, "server.port": port, "error.type": error or about.get("error.type")}
    inner = _span(trace, own["spanId"], name, record, 0.0, record.seconds, about, INTERNAL)
    yield inner
    for generation in record.generations:
        for name, begin, end in _phases(record, generation):
            counts: Attributes = {"prompt": len(generation.ids), "generated": generation.n_generated}
            yield _span(trace, inner["spanId"], name, record, begin, end, counts, INTERNAL)


def _of_model(record: EndedRequest, operation: ModelOperation) -> Attributes:
    """The attributes of the GenAI convention; None for those that the request has none of."""
    generations = record.generations
    about: Attributes = {
        "gen_ai.operation.name": operation.name, "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": operation.model, "gen_ai.response.model": operation.model,
        "gen_ai.usage.input_tokens": record.n_prompt if generations else operation.n_input,
        "gen_ai.conversation.id": record.headers.get("x-conversation-id"),
    }  # fmt: skip
    if not generations:
        return about
    asked = generations[0].asked
    about |= {f"gen_ai.request.{name}": value for name, value in asked.items() if name != "json"}
    reasons = [FINISH.get(reason, reason) for generation in generations for reason in generation.stop_reasons]
    firsts = [generation.first - record.begin for generation in generations if generation.first is not None]
    return about | {
        "gen_ai.output.type": "json" if asked["json"] else None,
        "gen_ai.request.stream": operation.stream or None,
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.response.time_to_first_chunk": min(firsts) if operation.stream and firsts else None,
        "gen_ai.usage.output_tokens": record.n_generated,
        "gen_ai.usage.cache_read.input_tokens": sum(generation.n_cached for generation in generations),
        "error.type": None if all(generation.stop_reasons for generation in generations) else "cancelled",
    }


def _phases(record: EndedRequest, generation: Generated) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end of each phase, in seconds since the request came."""
    submitted = generation.submitted - record.begin
    first = record.seconds if generation.first is None else generation.first - record.begin
    yield "make the prompt", 0.0, submitted
    yield "read the prompt", submitted, first
    if generation.first is not None:
        yield "generate", first, record.seconds


def _span(
    trace: str, parent: str | None, name: str, record: EndedRequest, begin: float, end: float,
    about: Attributes, kind: int,
) -> Span:  # fmt: skip
    failed = {"status": {"code": ERROR}} if about.get("error.type") else {}
    return {
        "traceId": trace, "spanId": secrets.token_hex(8), "parentSpanId": parent or "", "name": name,
        "kind": kind, "startTimeUnixNano": str(record.began_ns + int(begin * 1e9)),
        "endTimeUnixNano": str(record.began_ns + int(max(begin, end) * 1e9)),
        "attributes": _attributes(about), **failed,
    }  # fmt: skip


def _attributes(about: Attributes) -> list[dict[str, Any]]:
    """As OTLP's JSON has them; those that are None or empty lists are left out."""
    return [{"key": name, "value": _value(value)} for name, value in about.items() if value not in (None, [])]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(element) for element in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _body(spans: list[Span]) -> dict[str, Any]:
    scope = {"name": "graphml.server", "version": graphml.__version__}
    resource = {"attributes": _attributes({"service.name": "graphml"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}
