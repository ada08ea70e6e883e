"""What one family of models writes: how its reasoning is marked, and which syntax its tool calls have.

A value; each family has a file in `formats`. Knows nothing of the text that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from graphml.text.answers.call_sink import CallSink, random_id
from graphml.text.answers.call_syntax import CallReader, CallSyntax
from graphml.text.answers.text_reader import Step, TextReader


class WholeAnswerParser(Protocol):
    """The answer that is read, for a format that reads whole answers: an `AnswerParser`."""

    reader: TextReader
    calls: CallSink
    split: bool
    n_malformed: int
    reasoned: bool

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


@dataclass(frozen=True)
class ReasoningMarks:
    """The texts before and after a model's reasoning."""

    open: str
    close: str


@dataclass(frozen=True)
class AnswerFormat:
    """One family's format.

    found_by: the format is a template's where all texts of one of these groups occur in it. not_with: texts
    that speak against it. rank: of several that are found, the highest is taken. syntax: how calls are
    written; markers: those of its texts that open calls. calls: from a marker to what reads calls behind it,
    of further ones. bare: reads calls at the begin of the answer without a marker. whole: reads the whole
    answer in place of all that. frame: texts around the answer that are none of it; text_open: the one before
    its text. shown: further texts that are control tokens in the vocabulary and are needed. reasoning: its
    marks, where they are not the usual ones; reasons: its templates have them, whatever their text says;
    resumes: what stands between it and what follows, of formats that read whole answers. trigger: a regular
    expression whose group is where calls begin, NAMES for the tools', where `markers` cannot tell.
    """

    name: str
    found_by: tuple[tuple[str, ...], ...]
    syntax: CallSyntax | None = None
    markers: tuple[str, ...] = ()
    calls: Mapping[str, CallReader] = field(default_factory=dict)
    not_with: tuple[str, ...] = ()
    rank: int = 0
    bare: CallReader | None = None
    whole: Callable[[WholeAnswerParser], Step[None]] | None = None
    frame: tuple[str, ...] = ()
    text_open: str = ""
    shown: tuple[str, ...] = ()
    new_id: Callable[[], str] = random_id
    reasoning: ReasoningMarks | None = None
    reasons: bool = False
    resumes: str = ""
    trigger: str = ""

    def __post_init__(self) -> None:
        if self.syntax is not None:
            read = {marker: self.syntax.reader(marker) for marker in self.markers}
            object.__setattr__(self, "calls", {**read, **self.calls})
