"""Reasoning on a terminal: dimmed before the answer; what reads a pipe gets the answer alone.

Knows events of answers and the terminal; nothing of models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from graphml import settings
from graphml.api.tool_rounds import ChatEvent, ToolResult
from graphml.cli.console import Bars, write
from graphml.text.answers import ContentDelta, ReasoningDelta

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def text_of(events: Iterable[ChatEvent], bars: Bars, silent: bool = False) -> Iterator[str]:
    """The pieces of the text; reasoning is written meanwhile, dimmed, where stdout is a terminal."""
    shows = sys.stdout.isatty() and not silent
    reasons = called = says = False
    try:
        for event in events:
            if isinstance(event, ReasoningDelta) and shows:
                bars.close()
                _write(event.text, settings.colours())
                reasons = True
            elif isinstance(event, ContentDelta):
                if reasons:
                    write("\n\n")
                    reasons = False
                yield "\n" + event.text if called else event.text
                says, called = True, False
            elif isinstance(event, ToolResult):
                called = says  # the answer that follows is a paragraph of its own
    finally:
        if reasons:  # it ended within
            write("\n")


def _write(text: str, dimmed: bool) -> None:
    if dimmed:
        sys.stdout.write(DIM)
    write(text)
    if dimmed:
        sys.stdout.write(PLAIN)
        sys.stdout.flush()
