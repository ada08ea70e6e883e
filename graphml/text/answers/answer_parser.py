"""Splits an answer into reasoning, text and tool calls while it streams, by the format of its model.

Where the text is split into pieces changes nothing but the pieces of the deltas. What looks like a call and
is none is text, all of it. A call in which the answer ends is one that is not whole, and its marks are no
text. Knows formats; nothing of tokens, templates or tools' functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink, Schemas
from graphml.text.answers.call_syntax import CallReader
from graphml.text.answers.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta
from graphml.text.answers.text_reader import CutError, MalformedError, Step, TextReader

MOST_MALFORMED: Final = 16
"""So many malformed calls are tried: each is read again as text, which must not take quadratic time."""


class AnswerParser:
    """Parses one answer.

    format: of the model. tools: the parameters' schema of each tool that was offered; without tools no calls
    are looked for, and markers of calls are text. marks: how reasoning is marked, None: as the format says,
    if it does. inside: whether the prompt ended within the reasoning, so that the answer begins there.
    split: whether reasoning is told apart; if not, it is text with its marks. new_id: makes ids of calls,
    None: as the format does. holds: whether a call is told only when it is whole, as where no grammar makes
    it so. used_ids: of calls before, which are not given again. reasoned: whether the reasoning has ended,
    of formats with marks around it.
    """

    def __init__(
        self,
        format: AnswerFormat,
        tools: Schemas | None = None,
        marks: ReasoningMarks | None = None,
        inside: bool = False,
        split: bool = True,
        new_id: Callable[[], str] | None = None,
        holds: bool = True,
        used_ids: Iterable[str] = (),
    ) -> None:
        self.format, self.split, self._inside = format, split, inside
        self._marks = None if format.whole else marks or format.reasoning
        self._events: list[Event] = []
        self.reader = TextReader()
        self.calls = CallSink(
            tools or {}, self.reader, self._events.append, new_id or format.new_id, holds, used_ids
        )
        self._space = ""  # white space that is text only if more text follows
        self._at_start = True  # no text yet
        self._trims = bool(self._marks or format.frame or (tools and (format.calls or format.bare)))
        self._steps = (format.whole or AnswerParser._plain)(self)
        self.n_malformed = 0
        self._done = False
        self.reasoned = False
        self._readers = format.calls if tools else {}

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of the answer; return what became certain with it."""
        if text:
            self.reader.feed(text)
        return self._advance()

    def finish(self, cut: bool = False) -> list[Event]:
        """The answer has ended; return the rest. cut: though the model did not end it."""
        self.reader.ended, self.reader.cut = True, cut
        return self._advance()

    def _advance(self) -> list[Event]:
        if not self._done:
            try:
                next(self._steps)
            except StopIteration:
                self._done = True
        events = _joined(self._events)
        self._events.clear()
        return events

    def content(self, text: str) -> None:
        """Emit a piece of the answer's text; white space waits for what follows it."""
        if not self._trims:
            self._events.append(ContentDelta(text))
            return
        text = self._space + text
        solid = text.rstrip()
        self._space = text[len(solid) :]
        if solid:
            self._at_start = False
            self._events.append(ContentDelta(solid))

    def reasoning(self, text: str) -> None:
        """Emit a piece of the reasoning, without white space around it; text where it is not told apart."""
        if not self.split:
            self.content(text)
            return
        text = self._space + text
        solid = text.rstrip()
        self._space = text[len(solid) :]
        if solid:
            self._events.append(ReasoningDelta(solid))

    def drop_space(self) -> None:
        """White space before and after this is no text."""
        self._space = ""

    def _plain(self) -> Step[None]:
        offered = bool(self.calls.tools)
        calls = self._readers
        bare = self.format.bare if offered else None
        if self._marks is not None and self._inside:
            yield from self.read_reasoning(self._marks, "")
        while True:
            if self._trims and self._at_start and (yield from self._begins(bare)):
                continue
            looked_for = (*(calls if self.n_malformed < MOST_MALFORMED else ()), *self.format.frame)
            shown = self.format.shown
            stop = yield from self.reader.until(looked_for, self.content, not self.calls.n, shown)
            if stop is None:
                break
            if stop in calls:
                yield from self.read_calls(stop, calls[stop])
        self.keep_space()

    def _begins(self, bare: CallReader | None) -> Step[bool]:
        """Read what only the begin of a text can be: reasoning, and calls without a marker."""
        first = yield from self.reader.space(self.content)
        if self.format.frame and (yield from self.reader.optional(*self.format.frame)):
            return True
        if self._marks is not None:
            opened = yield from self.reader.optional(self._marks.open)
            if opened:
                yield from self.read_reasoning(self._marks, opened)
                return True
        self._at_start = False
        if bare is None or first not in ("{", "["):
            return False
        yield from self.read_calls("", bare)
        return True

    def read_reasoning(self, marks: ReasoningMarks, opened: str) -> Step[None]:
        """Read reasoning up to its end, which it may not have."""
        if not self.split:
            self.content(opened)
            stop = yield from self.reader.until((marks.close,), self.content)
            self.content(stop or "")
            return
        self.reasoned = False
        self.drop_space()
        yield from self.reader.space()
        while True:
            tried = tuple(self._readers) if self.n_malformed < MOST_MALFORMED else ()
            stop = yield from self.reader.until((marks.close, *tried), self.reasoning)
            if stop is None or stop not in self._readers:
                break
            if (yield from self._ends_with_calls(stop)):
                break
            self.reasoning(stop)
        self.reasoned = True
        self.drop_space()
        yield from self.reader.space()

    def _ends_with_calls(self, opened: str) -> Step[bool]:
        """Whether whole calls behind this marker are the last of the answer: those end unclosed reasoning.

        Otherwise they are a part of it, which goes on behind the marker.
        """
        reader = self.reader
        start, marker = reader.at, opened
        reader.set_mark(start)
        self.calls.try_calls()
        try:
            while marker:
                yield from self._readers[marker](reader, self.calls)
                if self.calls.is_open:
                    self.calls.end()
                yield from reader.space()
                marker = yield from reader.optional(*self._readers)
            last = not (yield from reader.peek())
        except MalformedError:
            last = False
        self.calls.decide(last)
        if not last:
            self.n_malformed += 1
            reader.at = start
        reader.set_mark(-1)
        return last

    def read_calls(self, opened: str, read: CallReader) -> Step[None]:
        """Read calls behind their marker. Where they are malformed, the text goes on behind the marker.

        Calls before the malformed one stay calls, and the text goes on behind them.
        """
        reader, calls = self.reader, self.calls
        start, whole, n_calls = reader.at - len(opened), calls.n_whole, calls.n
        reader.set_mark(start)
        try:
            yield from read(reader, calls)
            if calls.is_open:
                calls.end()
        except MalformedError as error:
            cut = isinstance(error, CutError) and (reader.cut or not calls.holds)
            emitted = calls.is_open and (cut or not calls.holds)  # its begin is not taken back
            calls.break_off(cut)
            self.n_malformed += 1
            certain = opened or calls.n_whole > whole or self._is_forced(reader.text[start:])
            if cut and (emitted or (certain and reader.cut)):
                reader.at = len(reader.text)
            elif calls.n_whole > whole:
                reader.at = reader.mark
            elif not emitted:
                reader.at = start + len(opened)
                self.content(opened)
        if calls.n > n_calls:
            self.drop_space()
        reader.set_mark(-1)

    def _is_forced(self, text: str) -> bool:
        """Whether the grammar lets a text without a marker be nothing but calls."""
        syntax = self.format.syntax
        if self.calls.holds or syntax is None:
            return False
        return text.lstrip().removeprefix(syntax.begin).startswith(syntax.lead)

    def keep_space(self) -> None:
        """White space at the end of a text is part of it, but not behind calls or alone after reasoning."""
        if self._space and not self.calls.n:
            self._events.append(ContentDelta(self._space))
        self._space = ""


def _joined(events: list[Event]) -> list[Event]:
    """The events with neighbouring deltas of one kind as one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + event.text)
        elif (
            isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta) and event.index == last.index
        ):
            joined[-1] = ToolCallDelta(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined
