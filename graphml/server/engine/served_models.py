"""The model that is served now, how another takes its place, and how it sleeps.

Requests keep their model to their end. One that sleeps is closed, with its blocks and its file; the next
request opens it again. Knows services and who uses them; all is called in the event loop's thread. Nothing
of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphml.api.model import Model
from graphml.errors import GraphmlError
from graphml.server.engine.service import Service
from graphml.server.options.server_options import ServerOptions
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.system.pages import give_back_memory

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,254}", re.ASCII)
LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""Of a model in several files, which is loaded by the first of them."""
POLL_S = 0.05
Loader = Callable[[Path], Model]


class ServedModels:
    """The current service. load: opens a model's file; None where none is loaded in place of the first."""

    def __init__(self, service: Service, load: Loader | None = None) -> None:
        self.current, self._load = service, load
        self._users: Counter[Service] = Counter()
        self._loading = False
        self._waking = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def use(self, needs: bool = True) -> Iterator[Service]:
        """The current service; it is not closed while within. needs: False: it may sleep all the same."""
        service = self.current
        if not needs:
            yield service
            return
        self._users[service] += 1
        try:
            yield service
        finally:
            self._users[service] -= 1
            self.sleep_later()

    def sleep_later(self) -> None:
        """Close the current model once no request has needed it for `--sleep-idle-seconds`."""
        seconds = self.current.options.sleep_idle
        if self._timer is not None:
            self._timer.cancel()
        if seconds >= 0 and self._load is not None:
            self._timer = asyncio.get_running_loop().call_later(max(seconds, POLL_S), self._sleep)

    def _sleep(self) -> None:
        service = self.current
        if self._users[service] or service.access.busy:
            self.sleep_later()
        elif not (service.asleep or service.access.draining):
            service.fall_asleep()  # from here on a request opens the model again
            self._in_background(asyncio.to_thread(_close, service))

    async def wake(self) -> None:
        """Open the current model if it sleeps. ApiError 503 where it cannot be opened now."""
        async with self._waking:  # requests that come meanwhile wait for one opening
            while (old := self.current).asleep and (load := self._load) is not None:
                if old.access.draining:
                    raise ApiError(503, "the server is shutting down")
                other = await asyncio.to_thread(self._opened, old.model.path, load, old.stated_options, 503)
                other.access.lora_scales = old.access.lora_scales
                if self.current is old and not old.access.draining:
                    self.current = other
                    del self._users[old]
                    return
                await asyncio.to_thread(_close, other)  # another was loaded meanwhile, or the server ends

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def names(self) -> list[str]:
        """The GGUF files of the folder of models, by name; none where that is off."""
        folder = self.current.options.models_dir
        if self._load is None or folder is None:
            return []
        names = (path.name for path in folder.glob("*.gguf") if path.is_file())
        return sorted(name for name in names if NAME.fullmatch(name) and not LATER_PART.search(name))

    async def swap(self, name: str) -> None:
        """Serve another file of the folder from now on; the model before it ends with its last request.

        ApiError 501 where that is off, 400 for a name that is no file there or cannot be opened, 409 while
        another is being opened.
        """
        folder = self.current.options.models_dir
        if self._load is None or folder is None:
            raise ApiError(501, "This server does not load models. Start it with `--models-dir`")
        path = folder / name
        if not NAME.fullmatch(name) or not path.is_file():
            raise wrong_field("model", "wanted the name of a file in the folder of models")
        if self._loading:
            raise ApiError(409, "a model is being loaded already")
        self._loading = True
        try:
            stated = replace(self.current.stated_options, loras=())
            other = await asyncio.to_thread(self._opened, path, self._load, stated, 400)
        finally:
            self._loading = False
        if self.current.access.draining:
            await asyncio.to_thread(_close, other)
            raise ApiError(503, "the server is shutting down")
        old, self.current = self.current, other
        self._in_background(self._retire(old))
        self.sleep_later()

    def _opened(self, path: Path, load: Loader, options: ServerOptions, status: int) -> Service:
        """A service of a file; ApiError of this status where it cannot be opened."""
        old = self.current
        try:
            model = load(path)
            try:
                return Service(model, options, old)
            except GraphmlError:
                model.close()
                raise
        except GraphmlError as error:
            raise ApiError(status, f"{path.name}: cannot be served: {_without(path, error)}") from None

    async def _retire(self, old: Service) -> None:
        while self._users[old] or old.access.busy:
            await asyncio.sleep(POLL_S)
        del self._users[old]
        await asyncio.to_thread(_close, old)

    def busy(self) -> bool:
        """Whether a request of any model is answered, or a model is being closed."""
        return self.current.access.busy or bool(self._retiring)

    def cancel(self) -> None:
        """End all requests."""
        for service in {self.current, *self._users}:
            for generation in list(service.access.active.values()):
                generation.cancel()


def _without(path: Path, error: GraphmlError) -> str:
    """An error's text without the folder of a file."""
    return str(error).replace(f"{path.parent}/", "")


def _close(service: Service) -> None:
    """Close a service, and free what its engine held, which refers to itself."""
    service.close()
    give_back_memory()
