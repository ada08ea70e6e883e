"""An answer on a terminal, reasoning dimmed before it; a line about its speed. A pipe gets the answer alone.

Knows events of answers and the terminal; nothing of models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from graphml.api.stats import Stats
from graphml.api.tool_rounds import ChatEvent, ToolResult
from graphml.cli.terminal.console import Bars, write
from graphml.cli.terminal.wrapped_text import WrappedText
from graphml.text.answers import ContentDelta, ReasoningDelta

DIM = "2"


def text_of(events: Iterable[ChatEvent], bars: Bars, silent: bool = False) -> Iterator[str]:
    """The pieces of the text; reasoning is written meanwhile, dimmed, where stdout is a terminal."""
    shows = sys.stdout.isatty() and not silent
    reasoning = WrappedText()
    reasons = called = says = False
    try:
        for event in events:
            if isinstance(event, ReasoningDelta) and shows:
                bars.close()
                reasoning.write(event.text, DIM)
                reasons = True
            elif isinstance(event, ContentDelta):
                if reasons:
                    write("\n\n")
                    reasons, reasoning = False, WrappedText()
                yield "\n" + event.text if called else event.text
                says, called = True, False
            elif isinstance(event, ToolResult):
                called = says  # the answer that follows is a paragraph of its own
    finally:
        if reasons:  # it ended within
            write("\n")


def speed(stats: Stats) -> str:
    """Return the figures of a generation as a line to read."""
    prompt = f"prompt {stats.n_prompt} tokens, {stats.prefill_tps:.1f}/s; " if stats.n_prompt else ""
    first = f"; {stats.ttft_s:.2f} s to the first" if stats.n_gen else ""
    drafts = f"; {stats.n_accepted} of {stats.n_drafted} drafted tokens right" if stats.n_drafted else ""
    return f"{prompt}answer {stats.n_gen} tokens, {stats.gen_tps:.1f}/s{first}{drafts}"
