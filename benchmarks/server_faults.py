"""Clients that leave, break off and send nonsense, beside others whose answers must be right.

`python -m benchmarks.server_faults URL --requests 10000 --clients 32 -p 64 -n 32` exits with 1 where an
answer is wrong or something is left behind; -p and -n are the words of a prompt and the tokens of its answer.
`--minutes 60` goes on for so long, however many that are, and fails also where memory has grown by more than
5 % since 30 % of the time.

Each prompt is answered alone first; the same prompt among all the others must get that text. Afterwards the
server must be at rest, and its memory as it was when warm. Knows addresses, requests and clocks; nothing of
what answers them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from graphml.backend import Progress, no_progress
from graphml.bench.server_load import MOST_S, ServerLoad, messages
from graphml.errors import UsageError

N_PROMPTS = 16
"""Different prompts whose answers are known."""
WARM = 0.3
"""Part of the requests, or of the time, after which memory should grow no more."""
MOST_GROWTH = 1.05
"""Memory at the end for that when warm, at most, of a run of minutes."""
REST_S = 30.0
"""Seconds in which a server should be at rest after the last request."""
MALFORMED = (
    b"NONSENSE\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{\"a\": [}}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n\xff\xfe",
    b"GET /\x00\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Content-Length: 6\r\n\r\n{}",
)  # fmt: skip
REST = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
MEMORY = "graphml:process_anonymous_bytes"


@dataclass
class Found:
    """What came of it. left, malformed: requests that were broken off, and those that are no HTTP.

    wrong: answers that differ from the prompt's own; errors: by kind. at_rest: whether nothing ran, waited or
    held memory in the end; None where the server has no metrics. warm, end: bytes of its memory, or None.
    """

    right: int = 0
    wrong: int = 0
    left: int = 0
    malformed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    at_rest: bool | None = None
    warm: float | None = None
    end: float | None = None

    @property
    def passed(self) -> bool:
        """Whether each answer that somebody waited for was right, and nothing was left behind."""
        return not self.wrong and not self.errors and self.at_rest is not False


def send_faults(
    address: str, load: ServerLoad, count: int, progress: Progress = no_progress, minutes: float = 0.0
) -> Found:
    """Send `count` requests, of `load.clients` at a time, or as many as so many minutes take."""
    return asyncio.run(_Run(address.rstrip("/"), load, count, progress, minutes).all())


def report(found: Found) -> Iterator[str]:
    """It as lines."""
    memory = "unknown" if None in (found.warm, found.end) else f"{_mb(found.warm)} -> {_mb(found.end)} MB"
    rest = {None: "unknown: no metrics", True: "yes", False: "NO"}[found.at_rest]
    yield "| right | wrong | errors | left | malformed | seconds | at rest | memory, warm and at the end |\n"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |\n"
    yield (
        f"| {found.right} | {found.wrong} | {found.errors.total()} | {found.left} | {found.malformed} | "
        f"{found.seconds:.1f} | {rest} | {memory} |\n"
    )
    for kind, times in found.errors.most_common():
        yield f"{times} x {kind}\n"
    if found.wrong:
        yield "wrong: rounding, too, gives other texts beside others, but for a server with --deterministic\n"


def _mb(count: float | None) -> str:
    return f"{(count or 0) / 1e6:.1f}"


class _Run:
    """One run: its server, its known answers, and what was found so far."""

    def __init__(
        self, address: str, load: ServerLoad, count: int, progress: Progress, minutes: float
    ) -> None:
        self._address, self._load, self._count, self._progress = address, load, count, progress
        self._minutes = minutes
        self._found, self._known = Found(), dict[int, str]()
        self._rng, self._begun, self._alone_s = random.Random(load.seed), 0, 0.1
        self._is_warm, self._first = False, 0.0

    async def all(self) -> Found:
        """Answers alone, then all requests, then rest."""
        begin = time.monotonic()
        headers = {"Authorization": f"Bearer {self._load.api_key}"} if self._load.api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx2.AsyncClient(
            timeout=httpx2.Timeout(MOST_S), limits=limits, headers=headers
        ) as client:
            for number in range(N_PROMPTS):
                alone = time.monotonic()
                try:
                    self._known[number] = await self._asked(client, number, stream=False)
                except Exception as error:
                    raise UsageError(
                        f"{self._address}: wanted a server that answers; got {error!r:.200}"
                    ) from None
                self._alone_s = time.monotonic() - alone
            self._first = time.monotonic()
            await asyncio.gather(*(self._worker(client) for _ in range(self._load.clients)))
            self._found.at_rest = await self._rested(client)
            self._found.end = (await self._metrics(client)).get(MEMORY)
        self._found.seconds = time.monotonic() - begin
        return self._found

    async def _worker(self, client: Any) -> None:
        while (part := self._part) < 1:
            number, self._begun = self._begun, self._begun + 1
            if part >= WARM and not self._is_warm:
                self._is_warm = True
                self._found.warm = (await self._metrics(client)).get(MEMORY)
            try:
                await self._one(client, number)
            except Exception as error:
                self._found.errors[f"{type(error).__name__}: {error}"[:120]] += 1
            self._progress("faults", int(self._count * part), self._count)

    @property
    def _part(self) -> float:
        """How much of the run is over, 0 to 1."""
        if self._minutes:
            return (time.monotonic() - self._first) / (60 * self._minutes)
        return self._begun / self._count if self._count else 1.0

    async def _one(self, client: Any, number: int) -> None:
        stream, kind = self._rng.random() < 0.5, self._rng.random()
        if kind < 1 / 3:
            self._found.left += 1
            seconds = self._rng.random() * 2 * self._alone_s
            try:
                await asyncio.wait_for(self._asked(client, N_PROMPTS + number, stream), seconds)
            except TimeoutError:
                return
        elif number % 20 == 19:
            self._found.malformed += 1
            await self._nonsense(MALFORMED[number // 20 % len(MALFORMED)])
        elif await self._asked(client, number % N_PROMPTS, stream) == self._known[number % N_PROMPTS]:
            self._found.right += 1
        else:
            self._found.wrong += 1

    async def _asked(self, client: Any, number: int, stream: bool) -> str:
        body = {
            "model": self._load.model, "messages": messages(self._load, number), "stream": stream,
            "max_tokens": self._load.n_gen, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        address = f"{self._address}/v1/chat/completions"
        if not stream:
            response = await client.post(address, json=body)
            if response.status_code != 200:
                raise RuntimeError(f"status {response.status_code}")
            return str(response.json()["choices"][0]["message"]["content"])
        async with client.stream("POST", address, json=body) as response:
            text = (await response.aread()).decode()
        chunks = [json.loads(one[6:]) for one in text.splitlines() if one.startswith("data: {")]
        deltas = [choice.get("delta", {}) for one in chunks for choice in one.get("choices", ())]
        if response.status_code != 200 or "data: [DONE]" not in text:
            raise RuntimeError(f"status {response.status_code}, a stream without its end")
        return "".join(one.get("content") or "" for one in deltas)

    async def _nonsense(self, raw: bytes) -> None:
        """Send what is no request; the server may refuse it, close the connection, or read it kindly."""
        parts = urlsplit(self._address)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            writer.write(raw)
            status = (await asyncio.wait_for(reader.readline(), MOST_S))[9:10]
            if status == b"5":
                raise RuntimeError(f"{raw[:40]!r} got {status.decode()}xx")
        finally:
            writer.close()

    async def _rested(self, client: Any) -> bool | None:
        end = time.monotonic() + REST_S
        while True:
            values = await self._metrics(client)
            if not set(REST) <= values.keys():
                return None
            if not any(values[name] for name in REST):
                return True
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.05)

    async def _metrics(self, client: Any) -> dict[str, float]:
        response = await client.get(f"{self._address}/metrics")
        if response.status_code != 200:
            return {}
        lines = [one.rpartition(" ") for one in response.text.splitlines() if not one.startswith("#")]
        return {name: float(value) for name, _, value in lines}


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the faults that the command line asks for; returns its exit code."""
    parser = argparse.ArgumentParser(prog="server_faults", description=__doc__)
    parser.add_argument("address", metavar="URL")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("-p", type=int, default=64)
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--api-key", default="")
    asked = parser.parse_args(arguments)
    load = ServerLoad(asked.clients, 1, asked.p, asked.n, api_key=asked.api_key)
    found = send_faults(asked.address, load, asked.requests, minutes=asked.minutes)
    print("".join(report(found)), end="")
    grew = asked.minutes and (found.end or 0) > MOST_GROWTH * (found.warm or 0)
    return 0 if found.passed and not grew else 1


if __name__ == "__main__":
    sys.exit(main())
