"""Clients of a server that speaks OpenAI's protocol: each streams chat completions, and times what arrives.

All clients are tasks of one event loop. The text is made of common words, about a token each; how many tokens
it was, the server says. Knows requests and their answers; nothing of rounds or of several servers.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from graphml.bench.latencies import AnswerTimes
from graphml.bench.timed_response import BrokenResponseError, TimedResponse, idle_connections, timed_post

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
