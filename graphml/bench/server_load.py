"""Clients of a server that speaks OpenAI's protocol: each streams chat completions, and times what arrives.

All clients are tasks of one event loop. The text is made of common words, about a token each; how many tokens
it was, the server says. A response is read as bytes with the times at which they came. The rows give what
the clients measured. Knows addresses, requests and clocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from graphml.backend import Progress, no_progress
from graphml.bench.latencies import AnswerTimes, itl_ms, three, ttft_ms
from graphml.bench.measure import WORKING
from graphml.bench.result_rows import NOISY, quartiles
from graphml.bench.written_rows import aligned, as_json, heads
from graphml.inspect.dumps.node_names import printable

LARGEST_HEAD = 1 << 20


class BrokenResponseError(Exception):
    """A response that is no HTTP, or without its end; the text says which."""


class TimedResponse(asyncio.Protocol):
    """The bytes of one response, which ends with its connection. parts: each with the time when it came."""

    def __init__(self, request: bytes) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self._request = request
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.parts.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        """All has come, or nothing more does."""
        if not self.ended.done():
            self.ended.set_result(None)

    def lines(self) -> tuple[int, Iterator[tuple[float, str]]]:
        """The status, and the lines of the body, each with the time when its end came.

        BrokenResponseError where there is no head; of the lines, where the body breaks off.
        """
        events = self._events()
        _, status = next(events, (0.0, None))
        if not isinstance(status, int):
            raise BrokenResponseError("a response without a head")
        return status, _lines((when, data) for when, data in events if isinstance(data, bytes))

    def _events(self) -> Iterator[tuple[float, int | bytes]]:
        """The status and the body's bytes, each with the time of the part that ends them."""
        import h11  # of the extra `server`; a bench without servers does without

        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        http.send(h11.Request(method="POST", target="/", headers=[("Host", "")]))
        http.send(h11.EndOfMessage())
        missing = "a head"
        try:
            for when, data in [*self.parts, (math.inf, b"")]:
                http.receive_data(data)
                while (event := http.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Response):
                        missing = "its end"
                        yield when, event.status_code
                    elif isinstance(event, h11.Data):
                        yield when, bytes(event.data)
                    elif isinstance(event, h11.EndOfMessage):
                        return
        except h11.RemoteProtocolError:
            raise BrokenResponseError(f"a response without {missing}") from None


def _lines(pieces: Iterator[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    rest = b""
    for when, piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield when, line.rstrip(b"\r").decode("utf-8", "replace")


async def timed_post(
    address: str,
    body: bytes,
    headers: dict[str, str],
    seconds: float,
    begun: Callable[[TimedResponse], None] = lambda response: None,
) -> tuple[float, TimedResponse]:
    """Send a request on a connection of its own and wait for its end; when it was sent, and the response.

    begun: gets the response before it has come.
    OSError where there is no connection, TimeoutError after so many seconds without a byte.
    """
    parts = urlsplit(address)
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    every = {
        "Host": host if parts.port is None else f"{host}:{parts.port}", "Content-Type": "application/json",
        "Content-Length": str(len(body)), "Connection": "close", **headers,
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    request = f"POST {parts.path or '/'} HTTP/1.1\r\n{head}\r\n".encode() + body
    secure = parts.scheme == "https"
    begin = time.perf_counter()
    transport, response = await asyncio.get_running_loop().create_connection(
        lambda: TimedResponse(request),
        name,
        parts.port or (443 if secure else 80),
        ssl=ssl.create_default_context() if secure else None,
    )
    begun(response)
    try:
        while not response.ended.done():
            n_parts = len(response.parts)
            await asyncio.wait({response.ended}, timeout=seconds)
            if not response.ended.done() and n_parts == len(response.parts):
                raise TimeoutError
    finally:
        transport.close()
    return begin, response


WORDS = re.findall(
    r"\S+",
    """
    the of and to in is it was for on that with as be at by from this have or an they which one you had not
    but what all were when there can more if out so said up time some into only new could these two may then
    do first any my now such like our over man even most made after also did many before must through years
    where much your way well down should because each just those people how too little state good very make
    world still own see men work long here get both between life being under never day same another know
    """,
)
BEGUN = 4
"""Parts of a response behind which its tokens come: its head is one."""
MOST_S = 600.0
"""Seconds without a byte after which an answer has failed."""


@dataclass(frozen=True)
class ServerLoad:
    """What arrives. clients: each sends `requests` chats, one after another.

    n_prompt: words of a chat that no other has, behind n_shared words that all begin with. n_gen: most tokens
    of an answer. seed: of the words. api_key: sent as a bearer token. n_long: words of one more chat, for one
    token, which comes when all clients get theirs; 0: none. n_idle: connections that ask for nothing.
    """

    clients: int
    requests: int
    n_prompt: int = 256
    n_gen: int = 128
    n_shared: int = 0
    seed: int = 0
    model: str = "default"
    api_key: str = ""
    n_long: int = 0
    n_idle: int = 0


@dataclass
class Outcome:
    """What came of a load. tokens: of all whole answers; errors: by kind; seconds: of the whole load.

    long: the answer to the long prompt.
    """

    answers: list[AnswerTimes] = field(default_factory=list)
    tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    long: AnswerTimes | None = None

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second, of all clients together."""
        return self.tokens / self.seconds if self.seconds else 0.0


class FailedRequestError(Exception):
    """A request was refused, or its answer broke off; the text says how."""


def send(address: str, load: ServerLoad) -> Outcome:
    """Send a load to a server and wait for all answers."""
    return asyncio.run(_all(address.rstrip("/"), load))


def messages(load: ServerLoad, number: int) -> list[dict[str, str]]:
    """The chat of a request of this number: the same words for the same load, others for more clients."""
    shared = random.Random(load.seed).choices(WORDS, k=load.n_shared)
    own = random.Random(f"{load.seed} {load.clients} {number}").choices(WORDS, k=load.n_prompt)
    system = [{"role": "system", "content": " ".join(shared)}] if shared else []
    return [*system, {"role": "user", "content": f"{number}: " + " ".join(own)}]


async def _all(address: str, load: ServerLoad) -> Outcome:
    outcome, run = Outcome(), _LoadRun(address, load)
    async with idle_connections(address, load.n_idle):
        begin = time.perf_counter()
        beside = asyncio.ensure_future(run.long()) if load.n_long else None
        await asyncio.gather(*(run.client(which) for which in range(load.clients)))
        outcome.seconds = time.perf_counter() - begin
        if beside is not None:
            await beside
    outcome.errors = run.errors
    for timed in run.ended:  # nothing is read before, which would take time from the servers
        if (answer := _read(timed, outcome)) is not None:
            outcome.answers.append(answer[0])
            outcome.tokens += answer[1]
    for timed in run.long_ended:
        outcome.long = (_read(timed, outcome) or (None, 0))[0]
    return outcome


class _LoadRun:
    """The requests of a load, and their responses as they came."""

    def __init__(self, address: str, load: ServerLoad) -> None:
        self._path, self._load = f"{address}/v1/chat/completions", load
        self._begun: list[TimedResponse] = []
        self.ended: list[tuple[float, TimedResponse]] = []
        self.long_ended: list[tuple[float, TimedResponse]] = []
        self.errors: Counter[str] = Counter()

    async def client(self, which: int) -> None:
        """One chat after another."""
        load = self._load
        for request in range(load.requests):
            await self._ask(messages(load, which * load.requests + request), load.n_gen, self.ended)

    async def long(self) -> None:
        """The long chat, when all clients get their answers, or got none."""
        load = self._load
        while len(self._begun) + self.errors.total() < load.clients or any(map(_waits, self._begun)):
            await asyncio.sleep(0.01)
        long = replace(load, n_prompt=load.n_long, seed=load.seed + 1)
        await self._ask(messages(long, load.clients * load.requests), 1, self.long_ended)

    async def _ask(
        self, chat: list[dict[str, str]], n_gen: int, ended: list[tuple[float, TimedResponse]]
    ) -> None:
        key = self._load.api_key
        body = {
            "model": self._load.model,
            "messages": chat,
            "max_tokens": n_gen,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,  # of llama-server and vLLM; others answer as long as they like
        }
        raw, headers = json.dumps(body).encode(), {"Authorization": f"Bearer {key}"} if key else {}
        try:
            ended.append(await timed_post(self._path, raw, headers, MOST_S, self._begun.append))
        except OSError as error:
            self.errors[type(error).__name__] += 1


def _waits(response: TimedResponse) -> bool:
    """Whether its tokens do not come yet."""
    return len(response.parts) < BEGUN and not response.ended.done()


@contextlib.asynccontextmanager
async def idle_connections(address: str, count: int) -> AsyncIterator[None]:
    """Within, so many connections are open; OSError where the server or the system refuses one."""
    parts, opened = urlsplit(address), list[asyncio.StreamWriter]()
    secure = parts.scheme == "https"
    try:
        for _ in range(count):
            port = parts.port or (443 if secure else 80)
            opened.append((await asyncio.open_connection(parts.hostname, port, ssl=secure or None))[1])
        yield
    finally:
        for connection in opened:
            connection.close()


def _read(timed: tuple[float, TimedResponse], outcome: Outcome) -> tuple[AnswerTimes, int] | None:
    """An answer and its tokens; None, and an error more, where it is none."""
    try:
        return _answer(*timed)
    except (FailedRequestError, BrokenResponseError) as error:
        outcome.errors[str(error)] += 1
        return None


def _answer(begin: float, response: TimedResponse) -> tuple[AnswerTimes, int]:
    """An answer's times, and how many tokens it has by the server's count, else as many as came pieces."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    done = False
    status, lines = response.lines()
    if status != 200:
        raise FailedRequestError(f"status {status}")
    for when, chunk in _chunks(lines):
        if "error" in chunk:
            raise FailedRequestError("an error in the stream")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", ()):
            done = done or choice.get("finish_reason") is not None
            delta = choice.get("delta", {})
            if any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls")):
                times.append(when)
    if not done or not times:
        raise FailedRequestError("an answer without an end" if times else "an answer without text")
    details = usage.get("prompt_tokens_details") or {}
    n_prompt, n_cached = usage.get("prompt_tokens", 0), details.get("cached_tokens") or 0
    return AnswerTimes(begin, tuple(times), n_prompt, n_cached), usage.get("completion_tokens", len(times))


def _chunks(lines: Iterable[tuple[float, str]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The objects of a stream of events."""
    for when, line in lines:
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            try:
                chunk = json.loads(data)
            except ValueError:
                raise FailedRequestError("an event that is no JSON") from None
            if not isinstance(chunk, dict):
                raise FailedRequestError("an event that is no object")
            yield when, chunk
        elif line.startswith("error:"):  # llama-server's name for one
            raise FailedRequestError("an error in the stream")


@dataclass(frozen=True)
class ServerRow:
    """A load of one server. load: as it was sent, without the key.

    samples_ts: generated tokens per second of all clients together, of each round; median_ts, q1_ts, q3_ts:
    of those. ratio: the median of the rounds' ratios to the first server. ttft_ms, itl_ms: percentiles (p50,
    p95, p99) over the answers, and over the gaps between their pieces, of all rounds. n_prompt: tokens of
    prompts by the server's count, n_cached of them found computed. errors: by kind.
    long_ms: to the long prompt's first token, the median of the rounds; 0: there was none.
    """

    server: str
    load: dict[str, Any]
    test_time: str
    n_requests: int
    n_answers: int
    n_tokens: int
    median_ts: float
    q1_ts: float
    q3_ts: float
    noisy: bool
    ratio: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    n_prompt: int
    n_cached: int
    errors: dict[str, int]
    long_ms: float
    samples_ts: tuple[float, ...]


def measure_servers(
    servers: Sequence[str],
    loads: Sequence[ServerLoad],
    rounds: int,
    warm: bool = True,
    progress: Progress = no_progress,
) -> Iterator[ServerRow]:
    """Send each load `rounds` times to each server in turns; rows in order of loads, then of servers."""
    for load in loads:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if warm:
            for server in servers:
                send(server, replace(load, clients=1, requests=1, n_gen=4, seed=load.seed - 1))
        by_server: dict[str, list[Outcome]] = {server: [] for server in servers}
        for done in range(rounds):
            progress(WORKING, done, rounds)
            for server, outcomes in by_server.items():  # of every round the prompts are new to each server
                outcomes.append(send(server, replace(load, seed=load.seed + done)))
        progress(WORKING, rounds, rounds)
        first = by_server[servers[0]]
        for server, outcomes in by_server.items():
            yield _row(server, load, now, outcomes, first)


def _row(
    server: str, load: ServerLoad, now: str, outcomes: Sequence[Outcome], first: Sequence[Outcome]
) -> ServerRow:
    rates = [outcome.tokens_per_s for outcome in outcomes]
    q1, middle, q3 = quartiles(rates)
    ratios = [
        outcome.tokens_per_s / base.tokens_per_s
        for outcome, base in zip(outcomes, first, strict=True)
        if base.tokens_per_s
    ]
    answers = [answer for outcome in outcomes for answer in outcome.answers]
    long = [outcome.long.ttft_s * 1e3 for outcome in outcomes if outcome.long is not None]
    return ServerRow(
        server=server, load={**dataclasses.asdict(load), "api_key": ""}, test_time=now,
        n_requests=len(outcomes) * load.clients * load.requests, n_answers=len(answers),
        n_tokens=sum(outcome.tokens for outcome in outcomes), median_ts=middle, q1_ts=q1, q3_ts=q3,
        noisy=q3 - q1 > NOISY * middle, ratio=median(ratios) if ratios else 0.0, ttft_ms=ttft_ms(answers),
        itl_ms=itl_ms(answers), n_prompt=sum(answer.n_prompt for answer in answers),
        n_cached=sum(answer.n_cached for answer in answers),
        long_ms=median(long) if long else 0.0,
        errors=dict(sum((outcome.errors for outcome in outcomes), Counter())), samples_ts=tuple(rates),
    )  # fmt: skip


def _lengths(row: ServerRow) -> str:
    """Tokens of a prompt and of an answer, means."""
    return f"{row.n_prompt // (row.n_answers or 1)} / {row.n_tokens // (row.n_answers or 1)}"


def _errors(row: ServerRow) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in row.errors.items())


_COLUMNS: tuple[tuple[str, int, Callable[[ServerRow], str]], ...] = (
    ("server", -26, lambda row: printable(row.server)),
    ("clients", 7, lambda row: str(row.load["clients"])),
    ("answers", 9, lambda row: f"{row.n_answers} of {row.n_requests}"),
    ("in / out", 11, _lengths),
    ("t/s", 18, lambda row: f"{'*' * row.noisy}{row.median_ts:.2f} ± {(row.q3_ts - row.q1_ts) / 2:.2f}"),
    ("ratio", 5, lambda row: f"{row.ratio:.2f}"),
    ("TTFT ms p50 / p95 / p99", 26, lambda row: three(row.ttft_ms)),
    ("ITL ms p50 / p95 / p99", 24, lambda row: three(row.itl_ms)),
    ("found", 5, lambda row: f"{row.n_cached / row.n_prompt:.0%}" if row.n_prompt else ""),
    ("long ms", 7, lambda row: f"{row.long_ms:.0f}" if row.long_ms else ""),
    ("errors", -10, _errors),
)  # fmt: skip


def markdown(rows: Iterable[ServerRow]) -> Iterator[str]:
    """One line for each row once it is measured."""
    head, noisy = heads(_COLUMNS), False
    for row in rows:
        yield head + aligned(_COLUMNS, [cell(row) for _, _, cell in _COLUMNS])
        head, noisy = "", noisy or row.noisy
    if noisy:
        yield "\nnoisy: the quartiles of rows marked * lie more than 10 % of the median apart\n"


FORMATS: dict[str, Callable[[Iterable[ServerRow]], Iterator[str]]] = {"md": markdown, "json": as_json}
