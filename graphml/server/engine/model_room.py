"""Models side by side, loaded on demand while they fit; the least recently used one leaves for another.

Loads make room in the order of arrival. Idle models leave first. One in use accepts no new request and leaves
after its last one, so every wait ends once requests end. Knows names, sizes and users, all in the event
loop's thread; opening and closing run in threads. Nothing of requests, files or services.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from graphml.errors import UsageError
from graphml.server.responses.api_errors import ApiError

T = TypeVar("T")
Status = Literal["unloaded", "loading", "loaded", "unloading"]


@dataclass(eq=False)
class ModelEntry(Generic[T]):
    """A model that may be served: its name, the bytes that it takes while loaded, and who uses it.

    holds: whether its bytes are counted. waiting: requests that wait for its load. used: when it was last
    chosen, as a number that grows. error: why its last load failed; None where it did not.
    """

    name: str
    size: int
    status: Status = "unloaded"
    value: T | None = None
    error: str | None = None
    holds: bool = False
    users: int = 0
    waiting: int = 0
    used: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    load: asyncio.Task[T] | None = None
    leave: asyncio.Task[None] | None = None

    def count(self, users: int = 0, waiting: int = 0) -> None:
        """Change the numbers of users and of those that wait."""
        self.users += users
        self.waiting += waiting
        (self.idle.clear if self.users or self.waiting else self.idle.set)()


def leaving(
    held: Iterable[ModelEntry[T]], size: int, budget: int | None, most: int
) -> list[ModelEntry[T]] | None:
    """The models that leave for one of `size` bytes; None where it does not fit even alone.

    budget: bytes of all models; None: any. most: number of models; 0: any. Idle models leave before those in
    use, and of each the least recently used; those that leave already are the first.
    """
    order = sorted(
        held, key=lambda entry: (entry.leave is None, bool(entry.users or entry.waiting), entry.used)
    )
    for count in range(len(order) + 1):
        staying = order[count:]
        fits = budget is None or sum(entry.size for entry in staying) + size <= budget
        if fits and (most == 0 or len(staying) < most):
            return order[:count]
    return None


class ModelRoom(Generic[T]):
    """Entries by name, and which of them are loaded.

    opened, closed, sized: open a model of a name, close it, and say before how many bytes it takes; called in
    threads. budget, most: as of `leaving`. changed: called with an entry whose status has changed.
    """

    def __init__(
        self, opened: Callable[[str], T], closed: Callable[[T], None], sized: Callable[[str], int],
        budget: int | None = None, most: int = 0,
        changed: Callable[[ModelEntry[T]], None] = lambda entry: None,
    ) -> None:  # fmt: skip
        if most < 0 or (budget is not None and budget < 0):
            raise UsageError(f"models: wanted a budget and a number of at least 0, got {budget} and {most}")
        self.entries: dict[str, ModelEntry[T]] = {}
        self._opened, self._closed, self._sized, self._changed = opened, closed, sized, changed
        self._budget, self._most = budget, most
        self._making = asyncio.Lock()
        self._clock = itertools.count(1)
        self._closing = False

    @contextlib.asynccontextmanager
    async def use(self, name: str, autoload: bool = True) -> AsyncIterator[T]:
        """A model that stays within; loaded first where it is not.

        ApiError 400 for an unknown name, and without `autoload` for a model that is not loaded; 503 while the
        room closes; the load's own error for all that waited for it.
        """
        entry = self.entry(name)
        value = await self._acquired(entry, autoload)
        try:
            yield value
        finally:
            entry.count(users=-1)

    def entry(self, name: str) -> ModelEntry[T]:
        """The entry of a name; ApiError 400 for an unknown one."""
        entry = self.entries.get(name)
        if entry is None:
            raise ApiError(400, f"model {name!r:.200} not found")
        return entry

    async def _acquired(self, entry: ModelEntry[T], autoload: bool) -> T:
        while True:
            if self._closing:
                raise ApiError(503, "the server is shutting down")
            entry.used = next(self._clock)
            if entry.status == "loaded" and entry.value is not None:
                entry.count(users=1)
                return entry.value
            if entry.leave is not None and entry.status == "unloading":
                await asyncio.shield(entry.leave)
                continue
            if not autoload and entry.load is None:
                raise ApiError(400, "model is not loaded")
            return await self._load_awaited(entry)

    async def _load_awaited(self, entry: ModelEntry[T]) -> T:
        """The value of the one load of an entry, which goes on without those that no longer wait."""
        if entry.load is None:
            entry.error = None
            self._become(entry, "loading")
            entry.load = in_background(self._load(entry))
        entry.count(waiting=1)
        try:
            value = await asyncio.shield(entry.load)
            entry.count(users=1)
            return value
        finally:
            entry.count(waiting=-1)

    async def _load(self, entry: ModelEntry[T]) -> T:
        try:
            entry.size = await asyncio.to_thread(self._sized, entry.name)
            async with self._making:
                await self._make_room(entry)
                entry.holds = True
            entry.value = await asyncio.to_thread(self._opened, entry.name)
            self._become(entry, "unloading" if entry.leave is not None else "loaded")
            return entry.value
        except BaseException as error:
            entry.error, entry.holds = str(error), False
            self._become(entry, "unloaded" if entry.leave is None else "unloading")
            raise
        finally:
            entry.load = None

    async def _make_room(self, entry: ModelEntry[T]) -> None:
        held = [other for other in self.entries.values() if other.holds]
        leavers = leaving(held, entry.size, self._budget, self._most)
        if leavers is None:
            raise ApiError(
                400, f"model {entry.name!r} takes {entry.size} bytes; all models may take {self._budget}"
            )
        await asyncio.gather(*(asyncio.shield(self._leaving(other)) for other in leavers))
        if self._closing:
            raise ApiError(503, "the server is shutting down")

    def _leaving(self, entry: ModelEntry[T]) -> asyncio.Task[None]:
        """The task that ends once a model has left; from now on no request begins with it."""
        if entry.leave is None:
            if entry.status == "loaded":
                self._become(entry, "unloading")
            entry.leave = in_background(self._leave(entry))
        return entry.leave

    async def _leave(self, entry: ModelEntry[T]) -> None:
        try:
            if entry.load is not None:
                await asyncio.wait({entry.load})
            await entry.idle.wait()
            value, entry.value = entry.value, None
            if value is not None:
                await asyncio.to_thread(self._closed, value)
        finally:
            entry.holds, entry.leave = False, None
            self._become(entry, "unloaded")

    def _become(self, entry: ModelEntry[T], status: Status) -> None:
        entry.status = status
        self._changed(entry)

    def add(self, name: str, size: int = 0, value: T | None = None) -> ModelEntry[T]:
        """A further entry; value: of one that is loaded already, and takes `size` bytes."""
        self.entries[name] = entry = ModelEntry[T](name, size)
        if value is not None:
            entry.status, entry.value, entry.holds = "loaded", value, True
        entry.count()  # nobody uses it
        return entry

    def leave_if_idle(self, name: str) -> bool:
        """Begin to close a loaded model that nobody uses or waits for; whether it is so."""
        entry = self.entry(name)
        if entry.status != "loaded" or entry.users or entry.waiting:
            return False
        self._leaving(entry)
        return True

    async def unload(self, name: str) -> None:
        """Close a model after its last request; ApiError 400 for one that is not loaded."""
        entry = self.entry(name)
        if entry.status == "unloaded":
            raise ApiError(400, "model is not running")
        await asyncio.shield(self._leaving(entry))

    async def close(self) -> None:
        """Accept no request any more, and close all models, each after its last one."""
        self._closing = True
        running = [entry for entry in self.entries.values() if entry.status != "unloaded"]
        await asyncio.gather(*(self._leaving(entry) for entry in running))


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task whose error is not reported where nobody waits for it any more."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task
