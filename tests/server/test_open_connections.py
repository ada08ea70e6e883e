"""Connections: how many may be open, which of them make room for others, and readers that stop."""

from __future__ import annotations

import errno
import logging
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

import graphml
from graphml.server.access import connections as timed_connections
from graphml.server.access.open_connections import AT_A_TIME, BoundedListener, OpenConnections
from graphml.server.engine.stored_responses import StoredResponse
from graphml.server.options.server_options import RequestLimits, ServerOptions
from tests.server.running_server import Running, running

MOST = 100
HEAD = b"POST /completion HTTP/1.1\r\nHost: localhost\r\n"
PARTS = {"nothing": b"", "a head": HEAD, "a body": HEAD + b"Content-Length: 50\r\n\r\n{"}
STREAM = b'{"prompt":"Once","n_predict":300,"stream":true,"n_probs":10,"ignore_eos":true}'
ASKED = HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM


class Counting(OpenConnections):
    """Knows how many there were at most."""

    largest = 0

    def accepted(self, sock: socket.socket) -> None:
        super().accepted(sock)
        self.largest = max(self.largest, len(self))


@pytest.fixture(scope="module")
def counted() -> Counting:
    return Counting(MOST)


@pytest.fixture(scope="module")
def bounded(stories: graphml.Model, counted: Counting) -> Iterator[Running]:
    options = ServerOptions(parallel=2, n_ctx=512, metrics=True)
    with running(options, stories, connections=counted) as found:
        yield found


@contextmanager
def connected(address: str, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    place = urlsplit(address)
    with ExitStack() as ends:
        clients = []
        for _ in range(count):
            client = ends.enter_context(socket.create_connection((place.hostname or "", place.port or 0)))
            client.settimeout(20)
            client.sendall(sent)
            clients.append(client)
        yield clients


def soon(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("part", PARTS)
def test_connections_without_a_whole_request_make_room(
    bounded: Running, counted: Counting, part: str
) -> None:
    with connected(bounded.address, 3 * MOST, PARTS[part]) as clients:
        assert httpx2.get(f"{bounded.address}/health").status_code == 200
        assert is_closed(clients[0])
        assert counted.largest <= MOST + AT_A_TIME
    assert soon(lambda: len(counted) <= 1)


def test_an_answer_is_not_ended_for_other_connections(bounded: Running, counted: Counting) -> None:
    bounded.http.get("/health")
    with connected(bounded.address, 1, ASKED) as (reader,):
        text = reader.recv(10)
        with connected(bounded.address, 2 * MOST):
            while more := reader.recv(1 << 16):
                text += more
                if b"\r\n0\r\n" in text:
                    break
        assert text.count(b"data: ") >= 300


def test_a_connection_beyond_answers_is_refused(stories: graphml.Model) -> None:
    one = Counting(1)
    with (
        running(ServerOptions(parallel=1, n_ctx=512), stories, connections=one) as found,
        connected(found.address, 1, ASKED) as (reader,),
    ):
        assert reader.recv(10)
        with connected(found.address, 3) as clients:
            assert [is_closed(client) for client in clients] == [True] * 3
        assert one.largest == 1


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def listener(told: list[str]) -> Iterator[BoundedListener]:
    with BoundedListener().bound(OpenConnections(100, told.append)) as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


def test_a_connection_that_there_is_no_descriptor_for_is_closed(
    listener: BoundedListener, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE]

    def failing(self: socket.socket) -> Any:
        if failures and listener._reserve is not None:  # one can be accepted once that is closed
            raise OSError(failures.pop(), "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with connected(f"http://127.0.0.1:{listener.getsockname()[1]}", 3) as clients:
        for client in clients[:2]:
            with pytest.raises(ConnectionAbortedError):
                listener.accept()
            assert is_closed(client)
        sock, _ = listener.accept()
        assert len(listener.connections) == 1
        sock.close()
        assert len(listener.connections) == 0
    assert len(told) == 1


def test_the_event_loop_has_its_turn_while_connections_are_accepted(listener: BoundedListener) -> None:
    listener.setblocking(False)
    with (
        connected(f"http://127.0.0.1:{listener.getsockname()[1]}", AT_A_TIME),
        ExitStack() as accepted,
    ):
        for _ in range(AT_A_TIME - 1):
            accepted.enter_context(listener.accept()[0])
        with pytest.raises(BlockingIOError):
            listener.accept()
        accepted.enter_context(listener.accept()[0])


def test_a_server_answers_whose_descriptors_are_used_up(tmp_path: Path) -> None:
    """Its log has one line of it, and no traceback."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "graphml", "serve", "stories260k", "--port", "0", "-np", "1"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (180, 180))

    with log.open("wb") as file, subprocess.Popen(command, stderr=file, preexec_fn=limit) as process:
        try:
            assert soon(lambda: " at http" in log.read_text())
            found = re.search(r"at (\S+)", log.read_text())
            assert found is not None
            with connected(found[1], 400):
                assert httpx2.get(f"{found[1]}/health", timeout=20).status_code == 200
                assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 180
        finally:
            process.terminate()
    lines = log.read_text().splitlines()
    assert [line for line in lines if "connections are open" in line] == lines[1:]


def test_what_is_written_behind_a_clients_end_is_not_logged(
    bounded: Running, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        with connected(bounded.address, 1, ASKED) as (client,):
            if number % 2:
                client.recv(2000)
            client.shutdown(socket.SHUT_WR)
            assert soon(lambda client=client: is_closed(client))  # type: ignore[misc]
    assert bounded.at_rest()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("query", ["", "?stream=true"], ids=["whole", "a stream"])
@pytest.mark.parametrize("closes", [True, False], ids=["half-closed", "open"])
def test_a_reader_that_stops_is_left(
    stories: graphml.Model, monkeypatch: pytest.MonkeyPatch, query: str, closes: bool
) -> None:
    """Its connection ends, though most of an answer was not taken."""
    close_s, read_s = (0.2, 60.0) if closes else (60.0, 0.2)
    monkeypatch.setattr(timed_connections, "CLOSE_S", close_s)
    monkeypatch.setattr(timed_connections, "WHOLE_READ_S", read_s)
    opened = Counting(4)
    limits = RequestLimits(stored_each_bytes=32 << 20)  # more than sockets' buffers take
    options = ServerOptions(parallel=1, n_ctx=512, timeout=read_s, limits=limits)
    with running(options, stories, connections=opened) as found, socket.socket() as client:
        response = {"id": "resp_1", "instructions": "x" * (16 << 20), "output": [], "status": "completed"}
        found.service.shared.responses.put(None, StoredResponse(response, [], []))
        place = urlsplit(found.address)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((place.hostname, place.port))
        client.sendall(b"GET /v1/responses/resp_1%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % query.encode())
        assert soon(lambda: len(opened) == 1)
        assert client.recv(12) == b"HTTP/1.1 200"
        if closes:
            client.shutdown(socket.SHUT_WR)
        assert soon(lambda: len(opened) == 0)
