"""A real headless Chromium for the tests of the viewer, and the documents that it shows.

The browser is Debian's package, driven by playwright, which brings none of its own.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graphml.inspect.document import describe
from graphml.runtime.load_options import LoadOptions
from graphml.runtime.open_executor import open_executor
from tests import tiny_model

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
LAYERS = 32


def executable() -> str:
    """Where the browser is; skips the test where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no {' or '.join(NAMES)} in the path; on Debian: apt-get install chromium")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """The browser, with a profile of its own that is thrown away."""
    path = executable()
    from playwright.sync_api import sync_playwright  # heavy, and not installed everywhere

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()


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
    chromium: Any,
    html: str,
    folder: Path,
    ready: str = "body[data-ready], body[data-failed]",
    **options: Any,
) -> Iterator[Page]:
    """The page of `html`, read from a file, drawn; the console stayed silent and the network idle."""
    path = folder / "graph.html"
    path.write_text(html, encoding="utf-8")
    context = chromium.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    try:
        page = Page(context.new_page())
        page.page.on("console", lambda message: page.complaints.append(message.text))
        page.page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.page.on("request", lambda request: page.requests.append(request.url))
        page.page.goto(path.as_uri())
        page.page.wait_for_selector(ready, timeout=20_000)
        assert page.complaints == []
        yield page
        assert page.complaints == []
        assert page.requests == [path.as_uri()]
    finally:
        context.close()


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
