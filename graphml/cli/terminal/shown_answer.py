"""An answer on a terminal, reasoning dimmed before it; a line about its speed. A pipe gets the answer alone.

Generated tokens are shown by their probability: in colours on a terminal, else as a table; and as JSON.

Knows events of answers and the terminal; nothing of models.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphml import settings
from graphml.api.stats import Stats
from graphml.api.tool_rounds import ChatEvent, ToolResult
from graphml.cli import STARTED
from graphml.cli.terminal.console import Bars, say, write
from graphml.cli.terminal.wrapped_text import WrappedText
from graphml.inspect.profile.text_table import text_table
from graphml.sampling.candidates.logprobs import TokenLogprobs
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


@dataclass(frozen=True)
class Seconds:
    """When a run began and had its model open; how long building and compiling its graphs took."""

    begin: float
    loaded: float
    compiling: float


def timings(stats: Stats, seconds: Seconds) -> str:
    """The figures of a generation as lines of ollama's `--verbose`, and lines of what else took time.

    The durations below the first add up to it: `start` is what Python imported, `other` what is in no other
    line, such as the chat template, the tokenizer and printing.
    """
    total = time.monotonic() - STARTED
    spent = {
        "start": seconds.begin - STARTED,
        "load": seconds.loaded - seconds.begin,
        "compile": seconds.compiling,
    }
    rows = [(f"{name} duration", f"{taken:.3f}s") for name, taken in spent.items()]
    parts = (("prompt eval", stats.n_prompt, stats.n_prompt - stats.n_cached, stats.prefill_tps),
             ("eval", stats.n_gen, stats.n_gen - 1, stats.gen_tps))  # fmt: skip
    for name, n_tokens, n_timed, rate in parts:
        rows.append((f"{name} count", f"{n_tokens} token(s)"))
        if rate:
            spent[name] = n_timed / rate
            rows.append((f"{name} duration", f"{spent[name]:.3f}s"))
            rows.append((f"{name} rate", f"{rate:.2f} tokens/s"))
    other = max(0.0, total - sum(spent.values()))
    rows = [("total duration", f"{total:.3f}s"), *rows, ("other duration", f"{other:.3f}s")]
    return "\n".join(f"{name + ':':22}{value}" for name, value in rows)


COLOURS = ((0.9, "32", "green"), (0.5, "36", "cyan"), (0.2, "33", "yellow"), (0.05, "35", "magenta"),
           (0.0, "31", "red"))  # fmt: skip
"""Least probability, code and name of each colour, the most likely first; those of a terminal's theme."""
FORMATS = {"probability": ".4f", "logprob": ".4f", "rank": "d", "entropy": ".3f"}
IMPOSSIBLE = -9999.0
"""What stands for -inf in JSON, which has no such number; OpenAI writes the same."""


class Scored(Protocol):
    """What has generated the tokens: a `Session`, or a server's."""

    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs | None]
    prompt_ids: list[int]


class TokenColours:
    """Writes pieces of an answer as they come: in colours, where their log-probabilities are known."""

    def __init__(self, session: Scored) -> None:
        self._session, self._n = session, 0
        self._used = False
        self._text = WrappedText()

    def write(self, piece: str) -> None:
        """Write one more piece, by the least likely of the tokens that made it certain."""
        tokens = self._session.logprobs[self._n :]
        self._n += len(tokens)
        self._used = self._used or bool(tokens)
        self._text.write(piece, _colour(min(token.logprob for token in tokens)) if tokens else "")

    def write_prompt(self) -> None:
        """Write the prompt's tokens that have log-probabilities."""
        for token in self._session.prompt_logprobs:
            if token is not None:
                self._used = True
                self._text.write(token.bytes.decode("utf-8", "replace"), _colour(token.logprob))

    def explain(self) -> None:
        """Say on stderr what the colours mean, where there are any."""
        if self._used and in_colours():
            say("probability: " + ", ".join(f"{name} from {least:.0%}" for least, _, name in COLOURS))


def in_colours() -> bool:
    """Whether stdout shows colours."""
    return sys.stdout.isatty() and bool(settings.colours())


def table_of(scores: Sequence[TokenLogprobs | None]) -> str:
    """A table of tokens with probability, log-probability, rank, entropy, and the most likely tokens."""
    known = [token for token in scores if token is not None]
    with_top = any(token.top for token in known)
    return "\n".join(text_table([_row(token, with_top) for token in known], FORMATS))


def as_json(entry: TokenLogprobs | None) -> dict[str, Any] | None:
    """A token as JSON holds it, with names as of OpenAI's; None for one that has no log-probability."""
    if entry is None:
        return None
    top = [
        {"id": token, "token": _text(spelled), "logprob": _number(value)}
        for token, spelled, value in entry.top
    ]
    own = {
        "id": entry.id,
        "token": _text(entry.bytes),
        "bytes": list(entry.bytes),
        "logprob": _number(entry.logprob),
    }
    return {**own, "rank": entry.rank, "entropy": entry.entropy, "top_logprobs": top}


def _colour(logprob: float) -> str:
    return next(code for least, code, _ in COLOURS if math.exp(logprob) >= least)


def _row(token: TokenLogprobs, with_top: bool) -> dict[str, Any]:
    top = "  ".join(f"{_quoted(spelled)} {math.exp(value):.3f}" for _, spelled, value in token.top)
    own = {"token": _quoted(token.bytes), "probability": math.exp(token.logprob), "logprob": token.logprob}
    return {**own, "rank": token.rank, "entropy": token.entropy, **({"most likely": top} if with_top else {})}


def _text(spelled: bytes) -> str:
    return spelled.decode("utf-8", "replace")


def _quoted(spelled: bytes) -> str:
    """Between quotes, so that spaces and ends of lines are seen."""
    return f"'{_text(spelled)}'"


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
