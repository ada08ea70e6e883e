"""gpt-oss (Harmony): messages in channels; analysis is reasoning, final is text, to=functions.NAME a call.

https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import CallSink
from graphml.text.answers.call_syntax import CallReader, CallSyntax
from graphml.text.answers.channel_messages import REASONING, TEXT, ChannelMessages
from graphml.text.answers.json_calls import json_arguments
from graphml.text.answers.text_reader import Step, TextReader, fail

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_HEADER: Final = re.compile(
    r"(?:assistant)?(?P<to_role>\s+to=\S+?)?\s*(?:<\|channel\|>(?P<channel>\w+)"
    r"(?P<to>\s+to=[^\s<]+)?\s*(?:<\|constrain\|>)?\s*\w*\s*)?"
)
_STRAY: Final = re.compile(r"<\|channel\|>commentary(?: to=assistant)?(?=<\|channel\|>)")


def _header(text: str) -> tuple[str, str] | None:
    header = _HEADER.fullmatch(_STRAY.sub("", text))
    if header is None:
        return None
    recipient = (header["to_role"] or header["to"] or "").strip().removeprefix("to=")
    if recipient and recipient != "assistant":
        return "", recipient.removeprefix("functions.")
    return REASONING if header["channel"] == "analysis" else TEXT, ""


def _call_of(name: str) -> CallReader:
    def read(reader: TextReader, calls: CallSink) -> Step[None]:
        if name not in calls.tools:
            fail(f"no tool {name}")
        if (yield from reader.optional(*ENDS)) or (not (yield from reader.space()) and not reader.cut):
            calls.whole(name, "{}")  # gpt-oss ends a call without arguments so
            return
        yield from json_arguments(reader, calls, name)
        if (yield from reader.space()) and (yield from reader.optional(*ENDS, START)) == START:
            reader.at -= len(START)

    return read


FORMAT = AnswerFormat(
    "harmony",
    found_by=((CHANNEL, "analysis", MESSAGE),),
    rank=4,
    whole=ChannelMessages(START, (CHANNEL, " to="), MESSAGE, ENDS, _header, _call_of).read,
    text_open=f"{CHANNEL}final{MESSAGE}",
    reasoning=ReasoningMarks(f"{CHANNEL}analysis{MESSAGE}", "<|end|>"),
    resumes=f"{START}assistant",
    shown=(START, CHANNEL, MESSAGE, CONSTRAIN, "<|end|>"),
    syntax=CallSyntax(
        f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}",
        "",
        between=f"<|end|>{START}assistant",
    ),
)
