"""What one client can do to the others of a server: big bodies, slow and many connections, readers that stop.

`python -m benchmarks.attacks_on_a_server [NAME ...]` starts a server for each attack and prints, of each, how
many requests it made and what they got; meanwhile the times of `/health`, those between two events of another
client's streams, and to the first event of each: median, 99th of a hundred, most; the server's memory before,
at most, and after 5 s of rest; and the lines of its log.
`--server COMMAND` is what is started instead, `--descriptors N` how many it may have open.

Knows requests, connections and clocks; nothing of what answers them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import re
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MB = 1 << 20
SERVER = f"{sys.executable} -m graphml serve stories260k --port 8300 -np 4 --temp 0 -n 16"
REST_S = 5.0
ANSWER_S = 120.0
"""Seconds after which a request counts as not answered."""
BODIES_AT_A_TIME = 4


@dataclass
class Server:
    """A server that runs: where it answers, its process, and its log."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def memory(self) -> float:
        """Its anonymous memory in MB; 0 where it has ended."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/status").read_text()
            if found := re.search(r"RssAnon:\s+(\d+)", text):
                return int(found[1]) / 1024
        return 0.0


@contextlib.contextmanager
def started(command: str, descriptors: int | None = None) -> Iterator[Server]:
    """A server of this command, which names its address on stderr."""

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(
            shlex.split(command), stdout=subprocess.DEVNULL, stderr=log, preexec_fn=limit
        )
        try:
            end = time.monotonic() + 60
            while not (found := re.search(r" at http://[^:]+:(\d+)", Path(log.name).read_text())):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command}: wanted a server; got {Path(log.name).read_text():.500}")
                time.sleep(0.05)
            yield Server(int(found[1]), process, Path(log.name))
        finally:
            process.kill()
            process.wait()


def watch_health(port: int, stop: Any, results: Any) -> None:
    """Ask `/health` on new connections until `stop`; send the seconds of each."""
    times = []
    while not stop.is_set():
        begin = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
            connection.request("GET", "/health")
            status = connection.getresponse().status
            connection.close()
        except OSError:
            status = 0
        times.append((time.monotonic() - begin, status))
        time.sleep(0.005)
    results.put(("health", times))


def watch_stream(port: int, stop: Any, results: Any) -> None:
    """Read streams of short answers until `stop`; send seconds of gaps, of first events, and failures."""
    gaps, firsts, failed = [0.0], [0.0], 0
    body = json.dumps({"prompt": "Once", "n_predict": 200, "stream": True, "ignore_eos": True})
    while not stop.is_set():
        begin = last = time.monotonic()
        first = True
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
            connection.request("POST", "/completion", body)
            response = connection.getresponse()
            failed += response.status != 200
            while response.readline():
                now = time.monotonic()
                (firsts if first else gaps).append(now - last)
                first, last = False, now
            connection.close()
        except OSError:
            failed += 1
            time.sleep(0.05)
        if first:  # none came at all
            firsts.append(time.monotonic() - begin)
    results.put(("stream", (gaps, firsts, failed)))


@dataclass
class Attack:
    """What an attack did. got: how often each status came, or what came in its place."""

    port: int
    got: Counter[str] = field(default_factory=Counter)

    def connection(self) -> socket.socket:
        """A connection to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)

    def post(self, path: str, body: bytes) -> None:
        """Send a body, and count what comes."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close"
        try:
            with self.connection() as client:
                client.sendall(f"{head}\r\n\r\n".encode())
                with contextlib.suppress(OSError):  # it may be refused before all of it came
                    client.sendall(body)
                self.got[client.recv(64)[9:12].decode() or "closed"] += 1
        except OSError as error:
            self.got[type(error).__name__] += 1

    def posts(self, path: str, body: bytes, count: int = 8) -> None:
        """The same, several at a time."""
        with ThreadPoolExecutor(BODIES_AT_A_TIME) as pool:
            list(pool.map(lambda _: self.post(path, body), range(count)))

    def hold(self, count: int, sent: bytes, then: Callable[[socket.socket], None] | None = None) -> None:
        """Open connections that send this and no more, keep them for 5 s, and leave."""
        clients = []
        for _ in range(count):
            try:
                client = self.connection()
                client.settimeout(0.2)
                clients.append(client)
                client.sendall(sent)
                if then is not None:
                    then(client)
                self.got["connected"] += 1
            except OSError as error:
                self.got[type(error).__name__] += 1
        time.sleep(REST_S)
        for client in clients:
            client.close()


def _list(values: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(values) + b"]"


def _members(count: int, value: str = "1") -> bytes:
    return b"{" + b",".join(b'"k%d":%s' % (i, value.encode()) for i in range(count)) + b"}"


def _nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + "{}" + "}" * levels


def _chat(more: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4,' + more.encode() + b"}"


def _wide(count: int) -> str:
    properties = ",".join(f'"k{i}":{{"type":"string"}}' for i in range(count))
    return '{"type":"object","properties":{' + properties + "}}"


def _call(arguments: str) -> bytes:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]  # fmt: skip
    return json.dumps({"messages": messages, "max_tokens": 4}).encode()


def _bodies() -> dict[str, Callable[[], tuple[str, bytes]]]:
    """The path and the body of each attack by one kind of request."""
    hard = b"1.2345678901234567e-300"
    texts = ",".join(f'"abcdefghijk{i}"' for i in range(400_000))
    format = '"response_format":{"type":"json_schema","json_schema":{"schema":%s}}'
    text_format = '{"input":"Hi","text":{"format":{"type":"json_schema","name":"a","schema":%s}}}'
    output = '"output_config":{"format":{"type":"json_schema","schema":%s}}'
    tools = '"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]'
    long = "a b " * (7 * MB)
    return {
        "lists in lists, 30 MB": lambda: ("/completion", b'{"prompt":' + b"[" * (30 * MB)),
        "objects in objects": lambda: ("/completion", b'{"prompt":' + b'{"a":' * 60_000),
        "1,000,000 keys": lambda: ("/completion", b'{"prompt":"a","x":' + _members(1_000_000) + b"}"),
        "60,000 keys": lambda: ("/completion", b'{"prompt":"a","json_schema":' + _members(60_000) + b"}"),
        "1,000,000 ids": lambda: ("/completion", b'{"prompt":' + _list([b"7"] * 1_000_000) + b"}"),
        "1,000,000 numbers": lambda: ("/completion", b'{"prompt":' + _list([hard] * 1_000_000) + b"}"),
        "long whole numbers": lambda: ("/completion", b'{"prompt":' + _list([b"7" * 4000] * 7_000) + b"}"),
        "1,000,000 texts": lambda: (
            "/v1/embeddings", b'{"input":' + _list([b'"text %d"' % i for i in range(1_000_000)]) + b"}",
        ),
        "2,048 texts": lambda: (
            "/v1/embeddings", b'{"input":' + _list([b'"a text %d"' % i for i in range(2048)]) + b"}",
        ),
        "a text of 30 MB": lambda: ("/completion", b'{"prompt":"' + b"a" * (30 * MB) + b'"}'),
        "an unknown field of 30 MB": lambda: (
            "/completion", b'{"prompt":"a","n_predict":4,"x":"' + b"a" * (30 * MB) + b'"}',
        ),
        "a name of 30 MB": lambda: (
            "/completion", b'{"prompt":"a","n_predict":4,"user":"' + b"a" * (30 * MB) + b'"}',
        ),
        "2,000,000 escapes": lambda: ("/completion", b'{"prompt":"' + b"\\u00e9" * 2_000_000 + b'"}'),
        "a chat of 28 MB": lambda: (
            "/v1/chat/completions",
            json.dumps({"messages": [{"role": "user", "content": long}]}).encode(),
        ),
        "a message of 28 MB": lambda: (
            "/v1/messages",
            json.dumps({"max_tokens": 1, "messages": [{"role": "user", "content": long}]}).encode(),
        ),
        "tokens of 0.5 MB": lambda: ("/tokenize", json.dumps({"content": "a b " * (MB // 8)}).encode()),
        "a word of 0.5 MB": lambda: ("/tokenize", json.dumps({"content": "ab" * (MB // 4)}).encode()),
        "pieces of 0.5 MB": lambda: (
            "/tokenize", json.dumps({"content": "a b " * (MB // 8), "with_pieces": True}).encode(),
        ),
        "262,144 ids": lambda: ("/detokenize", b'{"tokens":' + _list([b"300"] * 262_144) + b"}"),
        "4,096 messages": lambda: (
            "/apply-template",
            json.dumps({"messages": [{"role": "user", "content": "Hi"}] * 4096}).encode(),
        ),
        "a template of 3 MB": lambda: (
            "/apply-template",
            json.dumps({"messages": [{"role": "user", "content": "a b " * 1500}] * 500}).encode(),
        ),
        "a schema as a text, 6 MB": lambda: (
            "/completion", json.dumps({"prompt": "a", "json_schema": '{"enum":[' + texts + "]}"}).encode(),
        ),
        "a text of 3,000,000 lists": lambda: (
            "/completion",
            json.dumps({"prompt": "a", "json_schema": '{"enum":[' + "[]," * 3_000_000 + "1]}"}).encode(),
        ),
        "a schema of 6 MB": lambda: ("/v1/chat/completions", _chat(format % ('{"enum":[' + texts + "]}"))),
        "a schema of 20,000 properties": lambda: ("/v1/chat/completions", _chat(format % _wide(20_000))),
        "a schema of 7,000 properties": lambda: ("/v1/chat/completions", _chat(format % _wide(7_000))),
        "a schema of 900 levels": lambda: ("/v1/chat/completions", _chat(format % _nested(900))),
        "a schema of 900 levels (responses)": lambda: (
            "/v1/responses", (text_format % _nested(900)).encode(),
        ),
        "a schema of 6 MB (responses)": lambda: (
            "/v1/responses", (text_format % ('{"enum":[' + texts + "]}")).encode(),
        ),
        "a schema of 7,000 properties (messages)": lambda: ("/v1/messages", _chat(output % _wide(7_000))),
        "a schema of 6 MB (messages)": lambda: ("/v1/messages", _chat(output % ('{"enum":[' + texts + "]}"))),
        "a schema of 6 MB (ollama)": lambda: (
            "/api/chat", _chat('"stream":false,"format":' + '{"enum":[' + texts + "]}"),
        ),
        "a schema of 7,000 properties (ollama)": lambda: (
            "/api/chat", _chat('"stream":false,"format":' + _wide(7_000)),
        ),
        "a tool of 7,000 properties": lambda: ("/v1/chat/completions", _chat(tools % _wide(7_000))),
        "a tool of 20,000 properties": lambda: ("/v1/chat/completions", _chat(tools % _wide(20_000))),
        "a tool of 6 MB": lambda: (
            "/v1/chat/completions",
            _chat(tools % ('{"type":"object","properties":{"a":{"enum":[' + texts + "]}}}")),
        ),
        "a call's arguments, 6 MB": lambda: (
            "/v1/chat/completions", _call('{"a":[' + "1.5," * 1_500_000 + "1]}"),
        ),
        "a call's arguments, cut": lambda: ("/v1/chat/completions", _call('{"a":[' + "[" * 100_000)),
        "a grammar of 250 KB": lambda: (
            "/completion",
            json.dumps({"prompt": "a", "grammar": "root ::= " + '"ab" | ' * 35_000 + '"c"'}).encode(),
        ),
        "an expression": lambda: (
            "/completion", json.dumps({"prompt": "a", "n_predict": 4, "regex": "(a|b)*" * 20_000}).encode(),
        ),
    }  # fmt: skip


def _slow_bodies(attack: Attack) -> None:
    """200 bodies of 32 MB that come at 256 KiB a second."""
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (32 * MB)
    clients = []
    for _ in range(200):
        with contextlib.suppress(OSError):
            client = attack.connection()
            client.setblocking(False)
            client.send(head + b'{"x":"')
            clients.append(client)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        begin = time.monotonic()
        for client in list(clients):
            try:
                client.send(b"a" * (256 << 10))
            except BlockingIOError:
                continue
            except OSError as error:
                attack.got[type(error).__name__] += 1
                clients.remove(client)
        time.sleep(max(0.0, 1 - (time.monotonic() - begin)))
    for client in clients:
        with contextlib.suppress(OSError):
            attack.got[client.recv(64)[9:12].decode() or "closed"] += 1
        client.close()


def _stored_response(attack: Attack) -> str:
    """The id of a response that the server keeps: of 7 MB, or of 0.9 MB where that is refused."""
    for size in (7 * MB, 9 * MB // 10):
        connection = http.client.HTTPConnection("127.0.0.1", attack.port, timeout=ANSWER_S)
        body = {"input": "Hi", "max_output_tokens": 4, "tools": [{"type": "web_search", "x": "y" * size}]}
        connection.request("POST", "/v1/responses", json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        attack.got[str(response.status)] += 1
        if response.status == 200:
            break
    return str(answer.get("id"))


def _stopped_readers(attack: Attack, query: str = "") -> None:
    """30 readers of a stored response that read nothing."""
    id = _stored_response(attack)
    attack.hold(30, f"GET /v1/responses/{id}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def _soak(attack: Attack) -> None:
    """5,800 streams, most of whose readers leave in the middle."""
    body = b'{"prompt":"Once","n_predict":60,"stream":true,"n_probs":10,"ignore_eos":true}'
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)

    def one(number: int) -> None:
        try:
            with attack.connection() as client:
                client.sendall(head + body)
                for _ in range(number % 5):
                    client.recv(512)
                if number % 3 == 0:
                    client.shutdown(socket.SHUT_WR)
                    time.sleep(0.02)
            attack.got["left"] += 1
        except OSError as error:
            attack.got[type(error).__name__] += 1

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(5800)))


def _half_closed(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


HEAD = b"POST /completion HTTP/1.1\r\nHost: localhost\r\n"
CONNECTIONS: dict[str, Callable[[Attack], None]] = {
    "19,000 silent connections": lambda attack: attack.hold(19_000, b""),
    "19,000 half heads": lambda attack: attack.hold(19_000, HEAD),
    "19,000 half bodies": lambda attack: attack.hold(19_000, HEAD + b'Content-Length: 50\r\n\r\n{"a":'),
    "19,000 half-closed connections": lambda attack: attack.hold(19_000, HEAD, _half_closed),
    "200 slow bodies of 32 MB": _slow_bodies,
    "30 stopped readers of a response": _stopped_readers,
    "30 stopped readers of its events": lambda attack: _stopped_readers(attack, "?stream=true"),
    "readers that leave": _soak,
}


def attacked(name: str, command: str, descriptors: int | None) -> str:
    """One row of the table."""
    bodies = _bodies()
    with started(command, descriptors) as server:
        context = multiprocessing.get_context("spawn")
        stop, results = context.Event(), context.Queue()
        watchers = [
            context.Process(target=work, args=(server.port, stop, results))
            for work in (watch_health, watch_stream)
        ]
        attack = Attack(server.port)
        prepared = bodies[name]() if name in bodies else None
        for watcher in watchers:
            watcher.start()
        time.sleep(2)
        before = most = server.memory()
        ended = threading.Event()

        def look() -> None:
            nonlocal most
            while not ended.wait(0.05):
                most = max(most, server.memory())

        looking = threading.Thread(target=look)
        looking.start()
        begin = time.monotonic()
        if prepared is None:
            CONNECTIONS[name](attack)
        else:
            attack.posts(*prepared)
        seconds = time.monotonic() - begin
        time.sleep(1)
        stop.set()
        told = dict(results.get(timeout=ANSWER_S + 10) for _ in watchers)
        for watcher in watchers:
            watcher.join()
        ended.set()
        looking.join()
        time.sleep(REST_S)
        after, lines = server.memory(), max(0, server.log.read_text(errors="replace").count("\n") - 1)
    gaps, firsts, failed = told["stream"]
    wrong = sum(status != 200 for _, status in told["health"])
    got = ", ".join(f"{count} {kind}" for kind, count in attack.got.most_common())
    times = map(_times, ([time for time, _ in told["health"]], gaps, firsts))
    return (
        f"| {name} | {got} | {seconds:.1f} | {' | '.join(times)} | "
        f"{wrong + failed} | {before:.0f} / {most:.0f} / {after:.0f} | {lines} |"
    )


def _times(seconds: Sequence[float]) -> str:
    """Milliseconds: the median, the 99th of a hundred, the most."""
    in_order = sorted(seconds)
    return " / ".join(f"{in_order[int((len(in_order) - 1) * part)] * 1e3:.0f}" for part in (0.5, 0.99, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the attacks that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="attacks_on_a_server", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--server", default=SERVER, metavar="COMMAND")
    parser.add_argument("--descriptors", type=int, metavar="N")
    asked = parser.parse_args(arguments)
    every = [*_bodies(), *CONNECTIONS]
    if wrong := [name for name in asked.names if not any(name in known for known in every)]:
        parser.error(f"{wrong[0]}: wanted a part of {'; '.join(every)}")
    print(
        "| attack | got | s | `/health`, ms | between events, ms | to a first event, ms | bad | MB | lines |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in every:
        if not asked.names or any(part in name for part in asked.names):
            print(attacked(name, asked.server, asked.descriptors), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
