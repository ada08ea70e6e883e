"""Tokens of an answer in, its events out: reasoning, text and tool calls.

Markers that are control tokens have text here, though tokens themselves have none for them. Knows tokens and
parsers; nothing of sessions or engines.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.api.tokens import Token
from graphml.text.answers import Answer, AnswerFormat, AnswerParser, Event, ReasoningMarks
from graphml.text.stop_strings import StopMatcher
from graphml.text.tokenizer import Tokenizer


class AnswerReader:
    """Reads the tokens of one answer.

    answer: the sum of all events so far. raw: the text with all its markers, as the tokens spell it. stops:
    the stop strings of the generation, which end the text here as there; ends: its stop tokens.
    """

    def __init__(
        self,
        parser: AnswerParser,
        tokenizer: Tokenizer,
        shown: frozenset[int],
        stops: Iterable[str] = (),
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self.answer, self.raw = Answer(), ""
        self._parser, self._stops = parser, StopMatcher(stops)
        self._ends = (tokenizer.end_tokens | ends) - shown
        self._stream = tokenizer.stream(skip_special=True, shown=shown)

    @property
    def reasoned(self) -> bool:
        """Whether the end of the reasoning has come, where it has a mark."""
        return self._parser.reasoned

    def push(self, token: Token) -> list[Event]:
        """Take a token; return the events that it made certain."""
        if token.id in self._ends:
            return []
        text, _ = self._stops.push(self._stream.push(token.id))
        return self._took(text, self._parser.feed(text))

    def finish(self, stop_reason: str | None = None) -> list[Event]:
        """The answer has ended, for this reason; return the rest."""
        text, stopped = self._stops.push(self._stream.flush())
        if not stopped:
            text += self._stops.flush()
        cut = stop_reason not in (None, "end", "stop")
        return self._took(text, [*self._parser.feed(text), *self._parser.finish(cut)])

    def _took(self, text: str, events: list[Event]) -> list[Event]:
        self.raw += text
        self.answer.add(events)
        return events


def shown_tokens(tokenizer: Tokenizer, format: AnswerFormat, marks: ReasoningMarks | None) -> frozenset[int]:
    """The control tokens that a format's markers are made of; end tokens are none of them."""
    texts = [*format.calls, *format.shown, *format.frame]
    if marks is not None:
        texts += [marks.open, marks.close]
    ids = {
        id
        for text in texts
        for control in tokenizer.spelled_controls(text)
        for id in tokenizer.encode(control, add_special=False, parse_special=True)
    }
    return frozenset(ids) - tokenizer.end_tokens
