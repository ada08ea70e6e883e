"""The models that are served: which one a request means, how each is opened, sleeps and leaves.

A model that left keeps what is said of it, and is opened again by the next request that names it. Knows
services and who uses them. All is called in the event loop's thread; what opens, closes and measures models
runs in others. Nothing of protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from graphml.errors import GraphmlError
from graphml.runtime.programs.memory_needed import memory_need
from graphml.server.engine.model_room import ModelEntry, ModelRoom, in_background
from graphml.server.engine.service import ClosedModel, Service, SharedParts
from graphml.server.options.model_sources import LoadableModel
from graphml.server.responses.api_errors import ApiError, unknown_model, wrong_field
from graphml.system.pages import give_back_memory
from graphml.weights.file_names import without_ending

LOG = logging.getLogger(__name__)
POLL_S = 0.05
WAITING_EVENTS = 1024
"""Of a client that does not read; it misses later ones."""
Sources = Callable[[], Mapping[str, LoadableModel]]
Entry = ModelEntry[Service]
Event = dict[str, Any]


class ServedModels:
    """Services by name, loaded on demand while they fit.

    first: one that is open already; requests that name no model get it, and without `options.routes` all do.
    sources: lists the models that may be loaded, with the first one where it may be opened again. budget:
    bytes of all loaded ones; None: any.
    """

    def __init__(
        self, shared: SharedParts, sources: Sources, first: Service | None = None, budget: int | None = None
    ) -> None:
        self.shared, self.options = shared, shared.options
        self._list, self._sources = sources, dict(sources())
        self._first = None if first is None else first.name
        most = self.options.models_max if self.options.routes else 0
        self.room: ModelRoom[Service] = ModelRoom(
            self._opened, self._closed, self._size, budget, most, changed=self._changed
        )
        self._last: dict[str, Service | ClosedModel] = {}
        self._origins: dict[str, tuple[object, ...]] = {}
        self._slept: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._lingering: set[Service] = set()
        self._listeners: set[asyncio.Queue[Event | None]] = set()
        self.draining = False
        if first is not None:
            counted = self.options.routes and budget is not None
            size = memory_need(first.model.executor, first.access.n_ctx).total if counted else 0
            self.room.add(first.name, size, first)
            self._last[first.name] = first
            if first.name in self._sources:
                self._origins[first.name] = _origin(self._sources[first.name], first)
        for name in self._sources.keys() - self.room.entries.keys():
            self.room.add(name)

    def chosen(self, name: str | None) -> Entry:
        """The entry that a request means. ApiError 404 for an unknown name, 400 for none where one is due."""
        entries = self.room.entries
        if self.options.routes and name in entries:
            return entries[name]
        if self._first is not None and (not name or not self.options.routes):
            return entries[self._first]
        if not name:
            raise wrong_field("model", "wanted the name of a model; `GET /v1/models` lists them")
        for entry in entries.values():
            if name in self.names_of(entry.name):
                return entry
        raise unknown_model(name, entries)

    def names_of(self, name: str) -> set[str]:
        """An entry's name with its aliases, and without the ending of a file."""
        service, source = self._last.get(name), self._sources.get(name)
        options = source.options if source else service.options if service else self.options
        plain = without_ending(name).removesuffix(".bin")  # of llama2.c
        files = plain, f"{plain}.gguf"
        return {name, *files, *options.aliases, options.short_name} - {""}

    @contextlib.asynccontextmanager
    async def use(self, name: str | None, autoload: bool | None = None) -> AsyncIterator[Service]:
        """The service that a request means, which stays open within; opened first where it is not.

        autoload: None: as the server does. Errors as of `chosen` and `ModelRoom.use`.
        """
        entry = self.chosen(name)
        if self.draining and entry.status != "loaded":
            raise ApiError(503, "the server is shutting down")
        wakes = not self.options.routes or entry.name in self._slept
        wanted = self.options.models_autoload if autoload is None else autoload
        try:
            async with self.room.use(entry.name, wanted or wakes) as service:
                try:
                    yield service
                finally:
                    self._stay(entry, service)
        finally:
            self._sleep_later(entry)

    def known(self, name: str | None) -> Service | ClosedModel:
        """The service that a request means, or what is left of it; ApiError 400 for one that never was."""
        service = self._last.get(self.chosen(name).name)
        if service is None:
            raise ApiError(400, "model is not loaded")
        return service

    def last(self, name: str) -> Service | ClosedModel | None:
        """The service that an entry has, or what is left of it; None for one that never was loaded."""
        return self._last.get(name)

    @property
    def has_first(self) -> bool:
        """Whether requests that name no model get one."""
        return self._first is not None

    def _stay(self, entry: Entry, service: Service) -> None:
        """Keep a service open while answers go on that no connection waits for."""
        if not service.access.busy or service in self._lingering:
            return

        async def linger() -> None:
            while service.access.busy:
                await asyncio.sleep(POLL_S)
            self._lingering.discard(service)
            entry.count(users=-1)
            self._sleep_later(entry)

        self._lingering.add(service)
        entry.count(users=1)
        in_background(linger())

    def begin(self) -> None:
        """Load what is wanted at the start, and let what is loaded sleep in time."""
        for name, source in self._sources.items():
            if source.on_startup:
                in_background(self.load(name))
            elif self.room.entries[name].status == "loaded":
                self._sleep_later(self.room.entries[name])

    def _sleep_later(self, entry: Entry) -> None:
        """Close a model once no request has needed it for its `--sleep-idle-seconds`."""
        if (timer := self._timers.pop(entry.name, None)) is not None:
            timer.cancel()
        source = self._sources.get(entry.name)
        if source is None or source.options.sleep_idle < 0 or entry.status != "loaded":
            return
        seconds = max(source.options.sleep_idle, POLL_S)
        self._timers[entry.name] = asyncio.get_running_loop().call_later(seconds, self._sleep, entry)

    def _sleep(self, entry: Entry) -> None:
        if not self.draining and self.room.leave_if_idle(entry.name):
            self._slept.add(entry.name)

    async def load(self, name: str) -> None:
        """Load a model, and return once it is; errors as of `use`."""
        async with self.use(name, autoload=True):
            pass

    async def unload(self, name: str) -> None:
        """Close a model after its last request; ApiError 400 for one that is not loaded, or has no source."""
        entry = self.chosen(name)
        if entry.name not in self._sources:
            raise ApiError(400, "this model cannot be opened again")
        await self.room.unload(entry.name)

    async def list_again(self) -> None:
        """Read the sources again; returns once models whose source is gone or has changed have left.

        Changed are flags or files; the next request opens such a model again.
        """
        self._sources = dict(await asyncio.to_thread(self._list))
        for name in self._sources.keys() - self.room.entries.keys():
            self.room.add(name)
        gone = self.room.entries.keys() - self._sources.keys() - {self._first}
        changed = await asyncio.to_thread(self._changed_sources)
        await asyncio.gather(*map(self._forget, gone), *map(self._unload, changed))

    def _changed_sources(self) -> list[str]:
        """The models that would not be opened as they are now."""
        known = [(name, source, self._last.get(name)) for name, source in self._sources.items()]
        return [
            name
            for name, source, service in known
            if isinstance(service, Service) and _origin(source, service) != self._origins.get(name)
        ]

    async def _unload(self, name: str) -> None:
        """Close a model after its last request, if it is loaded."""
        with contextlib.suppress(ApiError):
            await self.room.unload(name)

    async def _forget(self, name: str) -> None:
        await self._unload(name)
        if name not in self._sources:
            self.room.entries.pop(name, None)
            self._last.pop(name, None)
            self._slept.discard(name)
            if (timer := self._timers.pop(name, None)) is not None:
                timer.cancel()

    def _size(self, name: str) -> int:
        """The bytes that a model takes; 0 for one that cannot be opened, which its load says."""
        source = self._source(name)
        try:
            return source.size(source.find())
        except GraphmlError:
            return 0

    def _source(self, name: str) -> LoadableModel:
        """ApiError 404 for one that is gone since it was chosen, 503 while the server ends."""
        if self.draining:
            raise ApiError(503, "the server is shutting down")
        source = self._sources.get(name)
        if source is None:
            raise unknown_model(name, self.room.entries)
        return source

    def _opened(self, name: str) -> Service:
        """A service of a source; ApiError 400 where it cannot be opened, 503 where it once could."""
        source, before = self._source(name), self._last.get(name)
        path: Path | None = None
        try:
            path = source.find()
            model = source.open(path)
            try:
                service = Service(model, source.options, self.shared, name)
            except GraphmlError:
                model.close()
                raise
        except GraphmlError as error:
            LOG.warning("%s: cannot be served: %s", name, error)
            raise ApiError(
                503 if before else 400, f"{name}: cannot be served: {_without_folder(error, path)}"
            ) from None
        if isinstance(before, ClosedModel) and before.options.loras == source.options.loras:
            service.access.lora_scales = before.lora_scales
        if self.draining:
            service.access.draining = True
        self._last[name] = service
        self._origins[name] = _origin(source, service)
        self._slept.discard(name)
        return service

    def _closed(self, service: Service) -> None:
        """Close a service, and free what its engine held, which refers to itself."""
        try:
            self._last[service.name] = ClosedModel(service)
        finally:
            service.close()
            give_back_memory()

    def status(self, name: str) -> Event:
        """What is said of an entry, as llama-server writes it."""
        entry = self.room.entries[name]
        if entry.status == "unloaded" and name in self._slept:
            return {"value": "sleeping"}
        value = "loaded" if entry.status == "unloading" else entry.status
        failed = value == "unloaded" and entry.error is not None
        return {"value": value, **({"failed": True, "exit_code": 1} if failed else {})}

    def _changed(self, entry: Entry) -> None:
        if entry.status == "unloading":
            return
        status = self.status(entry.name)
        data = {"status": status["value"], **({"exit_code": 1} if "failed" in status else {})}
        for queue in self._listeners:
            if queue.qsize() < WAITING_EVENTS:
                queue.put_nowait({"model": entry.name, "event": "model_status", "data": data})

    async def events(self) -> AsyncGenerator[Event, None]:
        """Changes of models' states from now on, until the server ends."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while not self.draining and (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    def drain(self) -> None:
        """Accept no request any more; those that have begun may end."""
        self.draining = True
        for service in list(self.shared.services):  # a thread may add one
            service.access.draining = True
        for queue in self._listeners:
            queue.put_nowait(None)

    def busy(self) -> bool:
        """Whether a request of any model is answered, or a model is being opened or closed."""
        moving = any(entry.status in ("loading", "unloading") for entry in self.room.entries.values())
        return moving or any(service.access.busy for service in list(self.shared.services))

    def dead(self) -> bool:
        """Whether an engine has ended."""
        return any(service.access.state() == "dead" for service in list(self.shared.services))

    def cancel(self) -> None:
        """End all requests."""
        for service in list(self.shared.services):
            for generation in list(service.access.active.values()):
                generation.cancel()

    async def close(self) -> None:
        """Close all models, each after its last request."""
        self.draining = True
        await self.room.close()


def _origin(source: LoadableModel, service: Service) -> tuple[object, ...]:
    """What a model is made of: flags, and its files with size and time of change."""
    files = []
    for path in service.model.executor.file.paths:
        try:
            status = path.stat()
        except OSError:  # it is gone
            files.append((path, 0, 0, 0))
        else:
            files.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return source.stated, *files


def _without_folder(error: GraphmlError, path: Path | None) -> str:
    """An error's text without the folder of a file."""
    if path is None:
        return str(error)
    folder = rf"(?<![^\s'\"(]){re.escape(str(path.parent))}"
    text = re.sub(f"{folder}/", "", str(error))
    # A relative one may be a word of the text.
    return re.sub(rf"{folder}(?=[\s:'\"),]|$)", "its folder", text) if path.is_absolute() else text
