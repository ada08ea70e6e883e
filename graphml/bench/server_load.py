"""Clients of a server that speaks OpenAI's protocol: each streams chat completions, and times what arrives.

All clients are tasks of one event loop. The text is made of common words, about a token each; how many tokens
it was, the server says. Knows addresses, requests and clocks; nothing of rows.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from graphml.bench.latencies import Answer
from graphml.bench.timed_response import BrokenResponseError, TimedResponse, timed_post
from graphml.errors import UsageError

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
MOST_S = 600.0
"""Seconds without a byte after which an answer has failed."""


@dataclass(frozen=True)
class ServerLoad:
    """What arrives. clients: each sends `requests` chats, one after another.

    n_prompt: words of a chat that no other has, behind n_shared words that all begin with. n_gen: most tokens
    of an answer. seed: of the words. api_key: sent as a bearer token.
    """

    clients: int
    requests: int
    n_prompt: int = 256
    n_gen: int = 128
    n_shared: int = 0
    seed: int = 0
    model: str = "default"
    api_key: str = ""


@dataclass
class Outcome:
    """What came of a load. tokens: of all whole answers; errors: by kind; seconds: of the whole load."""

    answers: list[Answer] = field(default_factory=list)
    tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

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


def http_client(load: ServerLoad) -> Any:
    """A client of as many connections as are wanted. UsageError where httpx2 is not installed."""
    http = _http()
    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    limits = http.Limits(max_connections=None, max_keepalive_connections=None)
    return http.AsyncClient(timeout=http.Timeout(MOST_S), limits=limits, headers=headers)


async def _all(address: str, load: ServerLoad) -> Outcome:
    found, ended = Outcome(), list[tuple[float, TimedResponse]]()
    begin = time.perf_counter()
    await asyncio.gather(*(_client(address, load, which, found, ended) for which in range(load.clients)))
    found.seconds = time.perf_counter() - begin
    for one in ended:  # nothing is read before, which would take time from the servers
        try:
            answer, tokens = _answer(*one)
        except (FailedRequestError, BrokenResponseError) as error:
            found.errors[str(error)] += 1
        else:
            found.answers.append(answer)
            found.tokens += tokens
    return found


async def _client(
    address: str, load: ServerLoad, which: int, found: Outcome, ended: list[tuple[float, TimedResponse]]
) -> None:
    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    for request in range(load.requests):
        body = {
            "model": load.model,
            "messages": messages(load, which * load.requests + request),
            "max_tokens": load.n_gen,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,  # of llama-server and vLLM; others answer as long as they like
        }
        try:
            path = f"{address}/v1/chat/completions"
            ended.append(await timed_post(path, json.dumps(body).encode(), headers, MOST_S))
        except OSError as error:
            found.errors[type(error).__name__] += 1


def _answer(begin: float, response: TimedResponse) -> tuple[Answer, int]:
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
    return Answer(begin, tuple(times), n_prompt, n_cached), usage.get("completion_tokens", len(times))


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


def _http() -> Any:
    try:
        import httpx2
    except ImportError:
        raise UsageError(
            "--server: wanted the package httpx2, which is not installed: install the extra 'server'"
        ) from None
    return httpx2
