"""Where the log of graphml goes: stderr, from the level on that GRAPHML_LOG or a command line says.

Knows levels and handlers of `logging`; nothing of what is logged.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from graphml import settings
from graphml.errors import UsageError

LOG: Final = logging.getLogger("graphml")


def follow_setting() -> None:
    """Show the log as GRAPHML_LOG says; nothing changes where it says nothing."""
    if (level := settings.log()) is not None:
        show_log(level, "GRAPHML_LOG")


def show_log(level: str, name: str = "--log-level") -> None:
    """Show the log on stderr from a level on, unless the program has handlers of its own: they show it."""
    if level.lower() not in settings.LEVELS:
        raise UsageError(f"{name}: wanted one of {', '.join(settings.LEVELS)}; got {level!r:.80}")
    LOG.setLevel(level.upper())
    if not LOG.hasHandlers():
        LOG.addHandler(_Stderr())


class _Stderr(logging.Handler):
    """Lines on stderr, as it is when they come."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname} {record.name}: {self.format(record)}", file=sys.stderr)
