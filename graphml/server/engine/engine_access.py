"""The engine as handlers use it: prompts go in, tokens come out, and nobody waits in the event loop.

Encoding, templates, grammars and submission run in a pool of threads, four at a time; those that wait for
their turn to compile a grammar do not count. What embeds texts has threads of its own, and so have requests
with large bodies, since half a megabyte of text takes long to encode. What runs is known here, so that a
disconnect cancels it and `/slots` can show it. Knows the engine and its results; nothing of protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request

from graphml.api.engine import Engine
from graphml.api.late_interaction import late_interaction_of
from graphml.api.model import Model
from graphml.api.request_probes import NOT_PROBED, Probed
from graphml.api.stats import EngineStats
from graphml.errors import ArchitectureError, BusyError, UsageError
from graphml.sampling.structured.compile_turns import AT_A_TIME, MOST_WAITING, TURNS, Asker, asked_by
from graphml.server.access.text_limits import too_long
from graphml.server.engine.running_request import Generation
from graphml.server.engine.saved_slots import SavedSlots
from graphml.server.observing.server_metrics import ServerMetrics
from graphml.server.options.api_keys import ApiKeys
from graphml.server.options.key_limits import KeyLimits
from graphml.server.options.server_options import ServerOptions
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.server.responses.event_stream import client_left

T = TypeVar("T")
Pool: TypeAlias = Literal["requests", "large", "embeddings"]
POOL_THREADS: dict[Pool, int] = {"requests": 4, "large": 1, "embeddings": 4}
"""How many of each pool work at a time. Two that encode half a megabyte would hold up the event loop more."""
LARGE = "graphml.large"
"""In the scope of a request with a large body: what is made of the body is made in other threads."""
STALLED = 30.0
"""Seconds without a step, while sequences run, after which a server says that it does not work."""


class _PlaceInPool:
    """The work of a request in a pool of threads; another one has its room while it waits to compile.

    free: of the pool. asker: for whom it compiles.
    """

    def __init__(self, request: Request, free: threading.Semaphore) -> None:
        self._receive, self._free, self._loop = request.receive, free, asyncio.get_running_loop()
        self._ended = False
        self._watching: asyncio.Task[None] | None = None
        self.asker = Asker(request.scope.get("graphml.key"), self._resting)

    def end(self) -> None:
        """Nobody waits for it any more. The event loop's thread."""
        self._ended = True
        TURNS.leave(self.asker)
        if self._watching is not None:
            self._watching.cancel()
        # Else each keeps the other, and the request, until the garbage collector comes.
        self._watching, self.asker.resting = None, contextlib.nullcontext

    @contextlib.contextmanager
    def _resting(self) -> Iterator[None]:
        self._loop.call_soon_threadsafe(self._watch)
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()

    def _watch(self) -> None:
        if not self._ended and self._watching is None:
            self._watching = self._loop.create_task(self._leave())

    async def _leave(self) -> None:
        await client_left(self._receive)
        TURNS.leave(self.asker)


class InFlight:
    """What all models of a server answer, which limits count. lock: of these counts and of keys' uses."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.accesses: list[EngineAccess] = []

    def waiting(self) -> int:
        """Answers that are waited for, and those that may be."""
        return sum(access.queued + access.answers() for access in list(self.accesses))

    def answers(self) -> int:
        """Answers that are waited for."""
        return sum(access.answers() for access in list(self.accesses))

    def running_of(self, key: str) -> int:
        """The same of one key."""
        return sum(access.running_of(key) for access in list(self.accesses))


class EngineAccess:
    """One model's engine, and who uses it. in_flight: of this and the server's other models."""

    def __init__(
        self,
        model: Model,
        options: ServerOptions,
        keys: ApiKeys,
        metrics: ServerMetrics,
        in_flight: InFlight,
    ) -> None:
        if options.reranking and options.pooling in (None, "rank"):
            _check_ranks(model)
        self.model, self.options, self.keys = model, options, keys
        self.metrics, self.in_flight = metrics, in_flight
        self.active: dict[int, Generation] = {}
        self.slots = SavedSlots(options)
        self.numbers = itertools.count()
        # Those that wait for a turn to compile hold a thread; no embedding does.
        threads = {
            name: n + (name != "embeddings") * (MOST_WAITING + AT_A_TIME) for name, n in POOL_THREADS.items()
        }
        self.pools = {name: ThreadPoolExecutor(n, f"graphml-{name}") for name, n in threads.items()}
        self._free = {name: threading.Semaphore(n) for name, n in POOL_THREADS.items()}
        continues = model.executor.architecture.causal or model.executor.denoises
        self.generates = model.executor.generates and continues and not options.embeddings_only
        self.engine: Engine | None = None
        self.draining = False
        self.n_ctx = min(model.executor.longest, options.n_ctx or model.n_ctx)
        self.queued, self._claimed = 0, Counter[str | None]()
        self._steps: int | None = None
        self._moved = time.monotonic()
        self.lora_scales = [scale for _, scale in options.loras]
        if self.generates:
            overflow = "shift" if options.context_shift else "stop"
            self.engine = model.engine(
                max_sequences=options.parallel, n_ctx=self.n_ctx, overflow=overflow, keep=options.keep
            )
            self.n_ctx = self.engine.n_ctx
            self.engine.prepare_copies()  # most chats begin with the same tokens of a template
            if options.loras:
                self.engine.prefix_extra(self.adapters(), b"")  # reads them: a wrong file is told now
        in_flight.accesses.append(self)

    async def in_thread(
        self, request: Request, work: Callable[..., T], *arguments: Any, pool: Pool = "requests"
    ) -> T:
        """Run something of a request that takes time in a pool; 429 where too much waits already.

        ClientDisconnect where the client leaves while it waits for its turn to compile a grammar.
        """
        if self.in_flight.waiting() >= self.options.limits.waiting:
            raise ApiError(429, "too many requests wait; try again later")
        if pool == "requests" and LARGE in request.scope:
            pool = "large"
        free = self._free[pool]
        place = _PlaceInPool(request, free)

        def run() -> T:
            with free, asked_by(place.asker):
                return work(*arguments)

        self.queued += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pools[pool], run)
        except BusyError:
            if place.asker.left:
                raise ClientDisconnect from None
            raise
        finally:
            self.queued -= 1
            place.end()

    def submit(
        self,
        ids: list[int],
        settings: RequestSettings,
        arrived: float,
        *,
        salt: bytes = b"",
        key: str | None = None,
        keep: int | None = None,
        lora: list[tuple[str, float]] | None = None,
        priority: int = 0,
        deadline: float | None = None,
        id_slot: int | None = None,
        probed: Probed = NOT_PROBED,
    ) -> Generation:
        """Have the engine continue a prompt; called in a thread of the pool."""
        if self.engine is None:
            raise ApiError(501, "this server embeds texts and generates none")
        if not ids:
            raise ApiError(400, "the prompt is empty")
        if len(ids) >= self.n_ctx:
            raise too_long(f"{len(ids)} tokens", len(ids), self.n_ctx)
        handle = self.engine.submit(
            ids, settings.engine_params, settings.max_tokens, settings.seed, settings.n, key, priority,
            deadline, weight=self.limits_of(key).weight, keep=keep, lora=self.adapters(lora), salt=salt,
            **vars(probed),
        )  # fmt: skip
        generation = Generation(self, handle, ids, settings, arrived, id_slot, key)
        self.active[generation.number] = generation
        return generation

    def adapters(self, adapters: list[tuple[str, float]] | None = None) -> list[tuple[str, float]] | None:
        """The adapters of a request, by default those of the server; None where there are none."""
        if adapters is not None:
            return adapters
        if not self.options.loras:
            return None
        return [
            (str(path), scale) for (path, _), scale in zip(self.options.loras, self.lora_scales, strict=True)
        ]

    @contextlib.contextmanager
    def all_or_none(
        self, n_answers: int, n_tokens: int = 0, key: str | None = None
    ) -> Iterator[list[Generation]]:
        """Generations of one request; with an error none of them goes on.

        n_tokens: of its prompts. ApiError 429 where that is too much now, of all or of the key; 400 where it
        always is.
        """
        most = self.options.limits.waiting
        if n_answers > most:
            raise wrong_field("n", f"at most {most} answers of all prompts are wanted, got {n_answers}")
        with self.in_flight.lock:
            if self.in_flight.answers() + n_answers > most:
                raise ApiError(429, "too many requests wait; try again later")
            self.begin_use(key, n_tokens, n_answers)
            self._claimed[key] += n_answers
        generations: list[Generation] = []
        try:
            yield generations
        except BaseException:
            for generation in generations:
                generation.cancel()
            raise
        finally:
            with self.in_flight.lock:
                self._claimed[key] -= n_answers

    def answers(self) -> int:
        """Answers that are waited for."""
        return sum(self._claimed.values()) + sum(
            generation.settings.n for generation in list(self.active.values())
        )

    def running_of(self, key: str) -> int:
        """The same of one key."""
        return self._claimed[key] + sum(
            generation.settings.n for generation in list(self.active.values()) if generation.key == key
        )

    def limits_of(self, key: str | None) -> KeyLimits:
        """What a key may use; everything without one."""
        use = self.keys.use_of(key)
        return KeyLimits() if use is None else use.limits

    def begin_use(self, key: str | None, n_tokens: int, n_answers: int = 0) -> None:
        """Count a request of a key; ApiError 429 where it has used what it may."""
        if key is not None and (use := self.keys.use_of(key)) is not None:
            with self.in_flight.lock:
                use.begin(n_tokens, n_answers, self.in_flight.running_of(key))

    def generated(self, key: str | None, count: int) -> None:
        """Count tokens of an answer that has ended."""
        if (use := self.keys.use_of(key)) is not None:
            with self.in_flight.lock:
                use.generated(count)

    def stats(self) -> EngineStats | None:
        """Counts of the engine, if there is one."""
        return None if self.engine is None else self.engine.stats()

    def state(self) -> str:
        """One of ok, draining, and dead: the engine's thread has ended or does not move."""
        if self.engine is not None and self.engine.failure is not None:
            return "dead"
        stats, now = self.stats(), time.monotonic()
        if stats is not None:
            seen = stats.n_steps if stats.running else None
            if seen is None or seen != self._steps:
                self._steps, self._moved = seen, now  # of what runs, a first look is no stall yet
            elif now - self._moved > STALLED:
                return "dead"
        return "draining" if self.draining else "ok"

    @property
    def busy(self) -> bool:
        """Whether a request is answered, or waits to be."""
        return bool(self.queued or self.active)

    def close(self) -> None:
        """End what runs, and the threads."""
        for generation in list(self.active.values()):
            generation.cancel()
        for pool in self.pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        if self.engine is not None:
            self.engine.close()
        with contextlib.suppress(ValueError):  # closed before
            self.in_flight.accesses.remove(self)


def _check_ranks(model: Model) -> None:
    """UsageError where a model has nothing to score pairs of texts by."""
    if late_interaction_of(model.executor) is not None:
        return
    try:
        model.executor.graphs.build(1, 1, 1, "rank")
    except ArchitectureError as error:
        raise UsageError(f"--reranking: {model.path.name} is no reranking model: {error}") from None
