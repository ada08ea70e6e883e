"""The model that is served now, and how another takes its place: requests keep theirs to their end.

Knows services and who uses them; all is called in the event loop's thread. Nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from graphml.api.model import Model
from graphml.errors import GraphmlError
from graphml.server.engine.service import Service
from graphml.server.responses.api_errors import ApiError, wrong_field

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
        self._retiring: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def use(self) -> Iterator[Service]:
        """The current service; it is not closed while within."""
        service = self.current
        self._users[service] += 1
        try:
            yield service
        finally:
            self._users[service] -= 1

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
            other = await asyncio.to_thread(self._opened, path, self._load)
        finally:
            self._loading = False
        if self.current.access.draining:
            await asyncio.to_thread(_close, other)
            raise ApiError(503, "the server is shutting down")
        old, self.current = self.current, other
        task = asyncio.ensure_future(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _opened(self, path: Path, load: Loader) -> Service:
        old = self.current
        try:
            model = load(path)
        except GraphmlError as error:
            raise ApiError(400, f"{path.name}: cannot be served: {_without(path, error)}") from None
        try:
            return Service(model, replace(old.stated_options, loras=()), old)
        except GraphmlError as error:
            model.close()
            raise ApiError(400, f"{path.name}: cannot be served: {_without(path, error)}") from None

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
    service.access.close()
    service.model.close()
