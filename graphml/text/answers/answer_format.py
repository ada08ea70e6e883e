"""What one family of models writes: how its reasoning is marked and how its tool calls are written.

A value; each family has a file in `formats`. Knows nothing of the text that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from graphml.text.answers.call_sink import CallSink, random_id
from graphml.text.answers.parameter_calls import ParameterSyntax
from graphml.text.answers.text_reader import Step, TextReader


class WholeAnswerParser(Protocol):
    """The answer that is read, for a format that reads whole answers: an `AnswerParser`."""

    reader: TextReader
    calls: CallSink
    split: bool
    n_malformed: int

    def content(self, text: str) -> None:
        """Emit a piece of the text."""

    def reasoning(self, text: str) -> None:
        """Emit a piece of the reasoning."""

    def drop_space(self) -> None:
        """White space before and after this is no text."""

    def keep_space(self) -> None:
        """White space at the end is text."""

    def read_calls(self, opened: str, read: CallReader) -> Step[None]:
        """Read calls behind their marker; where they are malformed, it is text."""
        ...


CallReader: TypeAlias = Callable[[TextReader, CallSink], Step[None]]
"""Reads calls from behind the marker that opens them, to behind their end, or a MalformedError."""


@dataclass(frozen=True)
class ReasoningMarks:
    """The texts before and after a model's reasoning."""

    open: str
    close: str


@dataclass(frozen=True)
class CallSyntax:
    """How calls are forced by a grammar: begin, one call or several with `between`, end.

    A call is `before` with the name for {name}, then the arguments as JSON under the tool's schema, `after`.
    several: whether more than one call can stand in an answer. alone: whether one call stands there without
    begin and end. parameters: the arguments stand one by one between markers, in place of JSON.
    """

    before: str
    after: str
    begin: str = ""
    end: str = ""
    between: str = ""
    several: bool = True
    alone: bool = False
    parameters: ParameterSyntax | None = None


@dataclass(frozen=True)
class AnswerFormat:
    """One family's format.

    found_by: the format is a template's where all texts of one of these groups occur in it. not_with: texts
    that speak against it. rank: of several that are found, the highest is taken. calls: from a marker that
    opens calls to what reads them. bare: reads calls that stand at the begin of the answer without a marker.
    syntax: how calls are forced, None: by the generic form. whole: reads the whole answer in place of all
    that. shown: further texts that are control tokens in the vocabulary and are needed. example: a text and
    the arguments of the calls of the tools `weather` and `add` in it, for tests and docs.
    """

    name: str
    found_by: tuple[tuple[str, ...], ...]
    calls: Mapping[str, CallReader] = field(default_factory=dict)
    not_with: tuple[str, ...] = ()
    rank: int = 0
    bare: CallReader | None = None
    syntax: CallSyntax | None = None
    whole: Callable[[WholeAnswerParser], Step[None]] | None = None
    shown: tuple[str, ...] = ()
    new_id: Callable[[], str] = random_id
    reasoning: ReasoningMarks | None = None
