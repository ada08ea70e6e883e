"""Reads a text that is still coming: each step waits until what it asks for is decided by the text alone.

Steps are generators that yield where they need more text, so that a format is written down as if the whole
text were there, and where the text is split changes nothing. Knows characters and JSON; nothing of formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")
Step: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], None]

_SPACE: Final = re.compile(r"\s*")
_NESTING: Final = re.compile(r'["{}\[\]]')
_STRING_PART: Final = re.compile(r'["\\]')
_SCALAR: Final = re.compile(r"[-+.\w]*")
_CUT_SCALAR: Final = re.compile(r"(|t|tr|tru|f|fa|fal|fals|n|nu|nul|-|-?\d+(\.|(\.\d+)?[eE][-+]?))")
# Models write line ends inside of JSON strings, where JSON wants escapes.
_ESCAPES: Final = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}


class MalformedError(Exception):
    """The text is not what its beginning promised."""


class CutError(MalformedError):
    """The text ends before what its beginning promised is whole."""


def nothing(text: str) -> None:
    """Emit nothing."""


class TextReader:
    """The text so far.

    at: the next character; `mark`: from where on the text is kept; ended: no more comes; cut: it ended though
    more was to come. While there is no mark, what was read is dropped.
    """

    def __init__(self) -> None:
        self.text, self.at, self.mark = "", 0, -1
        self.ended = self.cut = False

    def feed(self, text: str) -> None:
        """More text."""
        if self.mark < 0:
            self.text, self.at = self.text[self.at :], 0
        self.text += text

    def set_mark(self, at: int) -> None:
        """Keep the text from here on."""
        self.mark = at

    def until(
        self, stops: Sequence[str], emit: Emit = nothing, partial: bool = True, controls: Sequence[str] = ()
    ) -> Step[str | None]:
        """Read up to the first of some texts and over it; what is before it is emitted.

        Returns which one, the longest of those that begin there; None where the text ends without one.
        partial: whether the begin of a stop, in which the text was cut, is emitted too; controls: but where
        it begins with one of these.
        """
        while True:
            start, nearest = len(self.text), None
            for stop in stops:
                place = self.text.find(stop, self.at)
                if place >= 0 and (place < start or (place == start and len(stop) > len(nearest or ""))):
                    start, nearest = place, stop
            decided = self.ended and (partial or not self.cut)
            undecided = self._undecided(stops)
            if decided and not (self.cut and self.text.startswith(tuple(controls), undecided)):
                undecided = len(self.text)
            if nearest is not None and start < undecided:
                before, self.at = self.text[self.at : start], start + len(nearest)
                if before:
                    emit(before)
                return nearest
            if undecided > self.at:
                before, self.at = self.text[self.at : undecided], undecided
                emit(before)
            if self.ended:
                return None
            yield

    def _undecided(self, stops: Sequence[str]) -> int:
        """From where on the text may be the beginning of a stop."""
        end = len(self.text)
        longest = max(map(len, stops), default=1) - 1
        for start in range(max(self.at, end - longest), end):
            rest = self.text[start:]
            if any(len(stop) > len(rest) and stop.startswith(rest) for stop in stops):
                return start
        return end

    def within(self, stops: Sequence[str]) -> Step[str]:
        """Read up to the first of some texts and over it; return what is before; or a MalformedError."""
        parts: list[str] = []
        yield from self.whole_until(stops, parts.append)
        return "".join(parts)

    def whole_until(self, stops: Sequence[str], emit: Emit) -> Step[str]:
        """As `until`; CutError where the text ends without one of them."""
        stop = yield from self.until(stops, emit, partial=False)
        if stop is None:
            raise CutError(f"{stops[0]} is missing")
        return stop

    def follows(self, texts: Sequence[str]) -> Step[bool]:
        """Whether one of these texts, or nothing, comes next behind white space; nothing is read."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            rest = self.text[match.end() : match.end() + max(map(len, texts))]
            if any(rest.startswith(text) for text in texts):
                return True
            partly = any(text.startswith(rest) for text in texts)
            if self.ended or not partly:
                return partly
            yield

    def space(self, emit: Emit = nothing) -> Step[str]:
        """Read over white space, which is emitted; return the next character, "" at the end."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self.at = match.end()
            if match.group():
                emit(match.group())
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            yield

    def peek(self) -> Step[str]:
        """The next character, "" at the end."""
        while self.at >= len(self.text) and not self.ended:
            yield
        return self.text[self.at : self.at + 1]

    def word(self, pattern: re.Pattern[str]) -> Step[str]:
        """Read over what a pattern of single characters, which may be none, matches here, and return it."""
        while True:
            match = pattern.match(self.text, self.at)
            assert match is not None
            if match.end() < len(self.text) or self.ended:
                self.at = match.end()
                return match.group()
            yield

    def characters(self, n: int) -> Step[str]:
        """Read over n characters and return them."""
        while len(self.text) < self.at + n:
            yield from self._more()
        self.at += n
        return self.text[self.at - n : self.at]

    def optional(self, *texts: str) -> Step[str]:
        """Read over the longest of these texts if it comes next, and return it, else ""."""
        while texts:
            rest = self.text[self.at : self.at + max(map(len, texts))]
            if not self.ended and any(len(text) > len(rest) and text.startswith(rest) for text in texts):
                yield
                continue
            longest = max((text for text in texts if rest.startswith(text)), key=len, default="")
            self.at += len(longest)
            return longest
        return ""

    def known(self, *texts: str) -> Step[str]:
        """As `optional`; CutError where the text ends within one of these texts."""
        text = yield from self.optional(*texts)
        rest = self.text[self.at :]
        if not text and self.ended and rest and any(wanted.startswith(rest) for wanted in texts):
            raise CutError("a name is not whole")
        return text

    def literal(self, *texts: str) -> Step[str]:
        """Read over one of these texts; MalformedError if none comes next."""
        text = yield from self.optional(*texts)
        if not text:
            rest = self.text[self.at :]
            if self.ended and any(wanted.startswith(rest) for wanted in texts):
                raise CutError(f"{texts[0]} is missing")
            fail(f"wanted {texts[0]}")
        return text

    def comma(self, close: str) -> Step[None]:
        """Read over white space and a comma, or up to what closes a list; else MalformedError."""
        if (yield from self.space()) != close:
            yield from self.literal(",", close)

    def closing(self, *texts: str) -> Step[None]:
        """Read over white space and one of these texts, unless the text ends here; else MalformedError."""
        if (yield from self.space()):
            yield from self.literal(*texts)

    def json_value(self, emit: Emit = nothing) -> Step[str]:
        """Read one JSON value and return it as text, emitted in pieces; MalformedError if it is none."""
        parts: list[str] = []

        def both(text: str) -> None:
            if text:
                parts.append(text)
                emit(text)

        first = yield from self.space()
        if first == '"':
            yield from self._string(both)
        elif first in ("{", "["):
            yield from self._nested(both)
        else:
            yield from self._scalar(both)
        whole = "".join(parts)
        if self.ended and self.at == len(self.text) and _CUT_SCALAR.fullmatch(whole):
            raise CutError("the text ends inside of JSON")
        parsed(whole)
        return whole

    def json_string(self) -> Step[str]:
        """Read a JSON string; return what it spells."""
        if (yield from self.space()) not in ("", '"'):
            fail("wanted a JSON string")
        return str(parsed((yield from self.json_value())))

    def _nested(self, emit: Emit) -> Step[None]:
        depth = 0
        while True:
            match = _NESTING.search(self.text, self.at)
            end = len(self.text) if match is None else match.start()
            emit(self.text[self.at : end])
            self.at = end
            if match is None:
                yield from self._more()
            elif match.group() == '"':
                yield from self._string(emit)
            else:
                emit(match.group())
                self.at += 1
                depth += 1 if match.group() in "{[" else -1
                if depth == 0:
                    return

    def _string(self, emit: Emit) -> Step[None]:
        emit('"')
        self.at += 1
        while True:
            match = _STRING_PART.search(self.text, self.at)
            end = len(self.text) if match is None else match.start()
            emit(self.text[self.at : end].translate(_ESCAPES))
            self.at = end
            if match is None:
                yield from self._more()
            elif match.group() == '"':
                emit('"')
                self.at += 1
                return
            else:  # a backslash and what it escapes are one piece
                while len(self.text) < self.at + 2:
                    yield from self._more()
                emit(self.text[self.at : self.at + 2])
                self.at += 2

    def _scalar(self, emit: Emit) -> Step[None]:
        emit((yield from self.word(_SCALAR)))

    def _more(self) -> Step[None]:
        if self.ended:
            raise CutError("the text ends inside of JSON")
        yield


def fail(reason: str) -> NoReturn:
    """Raise MalformedError."""
    raise MalformedError(reason)


def parsed(text: str) -> Any:
    """The value of a JSON text; MalformedError if it is none, nested too deeply, or not a number of JSON."""
    try:
        return json.loads(text, parse_constant=fail)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from None
