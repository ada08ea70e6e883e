"""Muse Glimmer: messages to the model itself, to the user, or to a tool, with a tag for each parameter."""

from __future__ import annotations

import re
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallReader, CallSyntax
from graphml.text.answers.channel_messages import REASONING, TEXT, ChannelMessages
from graphml.text.answers.parameter_calls import ParameterArguments
from graphml.text.answers.text_reader import Step, TextReader

START, MESSAGE, NEXT, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
BEGIN, CLOSE = "<atem:function_calls>", "</atem:function_calls>"
ARGUMENTS = ParameterArguments(
    '<atem:parameter name="', '">', "</atem:parameter>", "</atem:invoke>", lines=False
)
INVOKED = CallSyntax(
    '<atem:invoke name="{name}">\n', "\n", begin=f"{BEGIN}\n", end=CLOSE, arguments=ARGUMENTS
)
_HEADER: Final = re.compile(r"(?:assistant)?(?: to=(?P<to>[^\s<]+))?\s*")
_read_invoked: Final = INVOKED.reader(BEGIN)


def _header(text: str) -> tuple[str, str] | None:
    header = _HEADER.fullmatch(text)
    if header is None:
        return None
    recipient = header["to"] or "user"
    if recipient in ("self", "user"):
        return REASONING if recipient == "self" else TEXT, ""
    return "", recipient


def _call_of(name: str) -> CallReader:
    """Reads calls of the names within; that of the header is the first one's, or the begin of it."""

    def read(reader: TextReader, calls: CallSink) -> Step[None]:
        yield from reader.space()
        yield from reader.literal(BEGIN)
        yield from _read_invoked(reader, calls)
        yield from reader.optional(NEXT, END)

    return read


FORMAT = AnswerFormat(
    "muse-glimmer",
    found_by=(("<atem:function_calls>", "<|eom|>"),),
    rank=4,
    whole=ChannelMessages(START, (" to=", MESSAGE), MESSAGE, (NEXT, END), _header, _call_of).read,
    text_open=f" to=user{MESSAGE}",
    reasoning=ReasoningMarks(f" to=self{MESSAGE}", NEXT),
    resumes=f"{START}assistant",
    shown=(START, MESSAGE, NEXT),
    trigger=rf"(?:\A|{re.escape(START)}assistant)( to=(?:NAMES){re.escape(MESSAGE)})",
    syntax=CallSyntax(
        f' to={{name}}{MESSAGE}{BEGIN}\n<atem:invoke name="{{name}}">\n', f"\n{CLOSE}",
        between=f"{NEXT}{START}assistant", arguments=ARGUMENTS,
    ),
)  # fmt: skip
