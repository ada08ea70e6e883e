"""The lock of what may be closed. Knows its name; nothing of what it does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from graphml.errors import UsageError


class OpenLock:
    """lock: of one thread, which may take it again. closed: set with the lock held."""

    def __init__(self, name: object) -> None:
        self._name = name
        self.lock = threading.RLock()
        self.closed = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Within, nobody closes it; UsageError, which names it, where somebody has."""
        with self.lock:
            if self.closed:
                raise UsageError(f"{self._name}: the model was closed")
            yield
