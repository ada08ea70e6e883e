"""A real headless Chromium for the tests of a process, and its page, which is as new for each test.

The browser is Debian's package, driven by playwright, which brings none of its own. While it is open
playwright's loop of events counts as running, so it is closed before a test that does not ask for it
(`tests/conftest.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip


def executable() -> str:
    """Where the browser is; skips the test where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no {' or '.join(NAMES)} in the path; on Debian: apt-get install chromium")
    return found


class Browser:
    """Opened when a page is first asked for, with a profile of its own that is thrown away."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._chromium: Any = None
        self._page: Any = None

    @contextmanager
    def page(
        self, size: tuple[int, int], color_scheme: str = "light", reduced_motion: str = "no-preference"
    ) -> Iterator[Any]:
        """A page with nothing stored.

        A new one takes Chromium a second of processor time: the last is used again, unless its test failed.
        """
        page, self._page = self._page or self._new_page(), None
        try:
            page.set_viewport_size({"width": size[0], "height": size[1]})
            page.emulate_media(media="screen", color_scheme=color_scheme, reduced_motion=reduced_motion)
            page.mouse.move(0, 0)
            yield page
            page.evaluate("localStorage.clear(), sessionStorage.clear()")
            page.goto("about:blank")
        except BaseException:
            page.context.close()
            raise
        self._page = page

    def _new_page(self) -> Any:
        if self._chromium is None:
            path = executable()
            from playwright.sync_api import sync_playwright  # heavy, and not installed everywhere

            playwright = self._open.enter_context(sync_playwright())
            self._chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
            self._open.callback(self._chromium.close)
        return self._chromium.new_context().new_page()

    def close(self) -> None:
        self._page = self._chromium = None
        self._open.close()


@contextmanager
def heard(page: Any, **listeners: Callable[[Any], object]) -> Iterator[None]:
    """Each listener is told the page's events of its name."""
    for event, listener in listeners.items():
        page.on(event, listener)
    yield
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
