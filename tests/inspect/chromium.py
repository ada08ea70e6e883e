"""Pages of the viewer in a browser, and the documents that they show."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graphml.inspect.dumps.document import describe
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import tiny_model
from tests.browser import Browser, heard

LAYERS = 32


@dataclass
class Page:
    """An open page, what it wrote to the console and what it asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def names(self, selector: str) -> set[str]:
        """The nodes that match, by name."""
        self.drawn()
        return set(self.page.eval_on_selector_all(selector, "all => all.map(one => one.dataset.name)"))

    def drawn(self) -> None:
        """Wait until all is drawn: what is out of sight comes a moment later."""
        self.page.wait_for_selector("#stage:not(:has([aria-busy=true]))", state="attached")

    def find(self, text: str) -> None:
        """Search and jump, with the keyboard."""
        self.page.keyboard.press("/")
        self.page.fill("#search", text)
        self.page.keyboard.press("Enter")


@contextmanager
def opened(
    chromium: Browser,
    html: str,
    folder: Path,
    ready: str = "body[data-ready], body[data-failed]",
    size: tuple[int, int] = (1440, 900),
    **emulated: str,
) -> Iterator[Page]:
    """The page of `html`, read from a file, drawn; the console stayed silent and the network idle."""
    path = folder / "graph.html"
    path.write_text(html, encoding="utf-8")
    with chromium.page(size, **emulated) as found:
        page = Page(found)
        with heard(
            found,
            console=lambda message: page.complaints.append(message.text),
            pageerror=lambda error: page.complaints.append(str(error)),
            request=lambda request: page.requests.append(request.url),
        ):
            found.goto(path.as_uri())
            found.wait_for_selector(ready, timeout=20_000)
            assert page.complaints == []
            yield page
            assert page.complaints == []
            assert page.requests == [path.as_uri()]


@functools.cache
def _described(layers: int) -> str:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_model, "LAYERS", layers)
        path = tiny_model.write(Path(folder) / "tiny.gguf")
        executor = open_executor(path, LoadOptions("reference", threads=1, n_batch=8))
        compiled = executor.compiled(1, 1)
        found = describe(compiled, model="tiny llama", backend=executor.backend, device=executor.device)
        executor.close()
    return json.dumps(found)


def document(layers: int = LAYERS) -> dict[str, Any]:
    """The document of a llama with so many layers, opened as built; a copy that the test may change."""
    found: dict[str, Any] = json.loads(_described(layers))
    found["view"] = {"pass": "build"}
    return found
