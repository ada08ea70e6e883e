"""Texts to embed, or to rank, of clients that have left: they are ended, and others' texts go on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import graphml
from graphml.api import text_rows
from graphml.api.text_rows import Cancellation
from graphml.errors import BackendError
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running

TEXTS = ["Once upon a time there was a girl. " * 4] * 64


@pytest.fixture(params=[False, True], ids=["beside texts", "alone"])
def embedding(request: pytest.FixtureRequest, stories: graphml.Model) -> Iterator[Running]:
    """A server, with an engine that generates, too, or without one."""
    options = ServerOptions(parallel=2, n_ctx=128, embeddings_only=request.param, pooling="last")
    with running(options, stories) as server:
        yield server


def test_texts_of_a_client_that_leaves_are_ended(embedding: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), list[bool]()
    was_ended = text_rows._Text.ended

    def noted(text: Any, reason: str) -> None:
        ended.append(text._sequence.pooled is not None)
        begun.set()
        go_on.wait(20)  # the engine's thread: the client leaves meanwhile
        was_ended(text, reason)

    monkeypatch.setattr(text_rows._Text, "ended", noted)
    called = threading.Event()
    was_called = Cancellation.__call__

    def told(cancellation: Cancellation) -> None:
        called.set()
        was_called(cancellation)

    monkeypatch.setattr(Cancellation, "__call__", told)
    address, body = urlsplit(embedding.address), json.dumps({"input": TEXTS, "model": "x"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        client.sendall(head.encode() + body)
        assert begun.wait(20)
    assert called.wait(20)
    go_on.set()
    assert embedding.post("/v1/embeddings", {"input": "a", "model": "x"}).status_code == 200
    assert 0 < ended.count(True) < len(TEXTS)


def test_texts_that_are_cancelled_before_they_begin_are_not_computed(stories: graphml.Model) -> None:
    cancellation = Cancellation()
    cancellation()
    ids = [stories.encode(text) for text in TEXTS]
    with stories.engine(n_ctx=128) as engine:
        for owner in (engine, stories):
            with pytest.raises(BackendError, match="the text was cancelled"):
                owner.embed_ids(ids, "last", cancellation=cancellation)
        assert engine.embed_ids(ids[:1], "last")[0].shape[0] == 1
