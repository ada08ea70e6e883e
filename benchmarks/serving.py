"""Clients of an engine in one process: requests arrive, and are timed as their client sees them.

Each client sends its next request when it has the last token of the one before. All clients are tasks of one
event loop, in another thread than the engine's; ids go in and come out. Knows engines and clocks; nothing of
rows, files or suites.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphml.api.engine import Engine
from graphml.api.model import Model
from graphml.api.request_handle import Handle
from graphml.bench.latencies import AnswerTimes
from graphml.errors import UsageError
from graphml.inspect.profile.mixed_run import endless_engine

TARGET_ITL_MS = 50.0
LONG_SLOTS = 2
"""Sequences that may run beside those of the clients, for long prompts."""
WARM_UP = {"requests": 1, "n_gen": 4, "n_long": 0}
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Load:
    """What arrives. clients: each sends `requests` of them, one after another.

    n_prompt: ids of a prompt that no other has, behind n_shared ids that all begin with. n_gen: tokens that
    each gets. n_long: ids of prompts that arrive meanwhile, one every long_s seconds from the beginning on,
    for one token each; 0: none. seed: of all ids.
    """

    clients: int
    requests: int
    n_prompt: int = 256
    n_gen: int = 128
    n_shared: int = 0
    n_long: int = 0
    long_s: float = 2.0
    seed: int = 0

    @property
    def n_ctx(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.n_shared + self.n_prompt + self.n_gen, self.n_long + 1 if self.n_long else 0)

    @property
    def max_sequences(self) -> int:
        """Sequences that the engine runs at a time."""
        return self.clients + (LONG_SLOTS if self.n_long else 0)


@dataclass(frozen=True)
class Served:
    """One round. seconds: from the first request to the clients' last token.

    long: answers to the long prompts, of `n_long_sent`; the others still waited when the clients ended.
    computed_s: the part of the seconds in which steps were computed; n_rows: ids computed in them.
    """

    seconds: float
    answers: tuple[AnswerTimes, ...]
    long: tuple[AnswerTimes, ...]
    n_long_sent: int
    n_steps: int
    n_rows: int
    computed_s: float
    n_preempted: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens that the clients got, of all of them together, per second."""
        return sum(len(one.token_s) for one in self.answers) / self.seconds


def check(model: Model, load: Load) -> None:
    """UsageError for more than the model's context."""
    if load.n_ctx > model.n_ctx:
        raise UsageError(
            f"{model.path.name}: wanted a context of {load.n_ctx} tokens for prompts of "
            f"{max(load.n_shared + load.n_prompt, load.n_long)}; it has {model.n_ctx}"
        )
    if load.max_sequences > model.executor.n_batch:
        raise UsageError(
            f"-npl: wanted at most {model.executor.n_batch - load.max_sequences + load.clients} clients, "
            f"since a step has {model.executor.n_batch} rows; got {load.clients}"
        )


def serve(model: Model, load: Load) -> Served:
    """One round in an engine of its own, whose blocks are empty at first. UsageError as of `check`."""
    check(model, load)
    with endless_engine(
        model, load.n_ctx, max_sequences=load.max_sequences, target_itl_ms=TARGET_ITL_MS
    ) as engine:
        return asyncio.run(_serve(engine, load, model.n_vocab))


async def _serve(engine: Engine, load: Load, n_vocab: int) -> Served:
    numbers = np.random.default_rng(load.seed)
    shared = numbers.integers(0, n_vocab, load.n_shared, np.int32)
    own = numbers.integers(0, n_vocab, (load.clients, load.requests, load.n_prompt), np.int32)
    prompts = [[np.concatenate([shared, ids]) for ids in of] for of in own]
    long = _LongPrompts(engine, load, numbers, n_vocab)
    with engine.timeline() as timeline:
        start = time.perf_counter()
        beside = asyncio.create_task(long.arrive()) if load.n_long else None
        clients = [_client(engine, f"client {i}", of, load.n_gen) for i, of in enumerate(prompts)]
        answers = [one for of in await asyncio.gather(*clients) for one in of]
        end = max(one.token_s[-1] for one in answers)
        steps = timeline.steps
        if beside is not None:
            await long.end(beside)
    return Served(
        end - start, tuple(answers), tuple(long.answers), long.n_sent, len(steps),
        sum(step.n_rows for step in steps), sum(step.compute_s for step in steps),
        sum(len(step.preempted) for step in steps),
    )  # fmt: skip


async def _client(engine: Engine, name: str, prompts: list[Ids], n_gen: int) -> list[AnswerTimes]:
    """One request after another."""
    found = []
    for ids in prompts:
        arrived = time.perf_counter()
        found.append(await _answer(engine.submit(ids, max_tokens=n_gen, key=name), arrived))
    return found


async def _answer(handle: Handle, arrived: float) -> AnswerTimes:
    times = [time.perf_counter() async for _ in handle]
    result = handle.result()  # is there
    return AnswerTimes(arrived, tuple(times), result.n_prompt, result.n_cached)


class _LongPrompts:
    """Requests that arrive at fixed times, whatever became of those before."""

    def __init__(self, engine: Engine, load: Load, numbers: np.random.Generator, n_vocab: int) -> None:
        self._engine, self._load, self._numbers, self._n_vocab = engine, load, numbers, n_vocab
        self._waiting: dict[Handle, asyncio.Task[None]] = {}
        self.answers: list[AnswerTimes] = []
        self.n_sent = 0

    async def arrive(self) -> None:
        """Send one every `long_s` seconds, until cancelled."""
        due = time.perf_counter()
        while True:
            ids = self._numbers.integers(0, self._n_vocab, self._load.n_long, np.int32)
            arrived = time.perf_counter()
            handle = self._engine.submit(ids, max_tokens=1, key="long prompts")
            self._waiting[handle] = asyncio.create_task(self._wait(handle, arrived))
            self.n_sent += 1
            due += self._load.long_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def _wait(self, handle: Handle, arrived: float) -> None:
        answer = await _answer(handle, arrived)
        if answer.token_s:  # else it was cancelled
            self.answers.append(answer)
        del self._waiting[handle]

    async def end(self, arriving: asyncio.Task[None]) -> None:
        """No more arrive; those that wait are cancelled."""
        arriving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await arriving
        waiting = dict(self._waiting)
        for handle in waiting:
            handle.cancel()
        await asyncio.gather(*waiting.values())
