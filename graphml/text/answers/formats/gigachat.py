"""GigaChat 3 and 3.1: one JSON object, as a message of its own or behind a token."""

from __future__ import annotations

from graphml.text.answers.answer_format import AnswerFormat
from graphml.text.answers.call_syntax import CallSyntax

CALL, ROLE, END = "<|function_call|>", "<|role_sep|>", "<|message_sep|>"
MESSAGE = f"{END}\n\nfunction call{ROLE}\n"
OBJECT = '{{"name": "{name}", "arguments": '
FORMAT = AnswerFormat(
    "gigachat3",
    found_by=((ROLE, END),),
    not_with=(CALL,),
    rank=2,
    syntax=CallSyntax(MESSAGE + OBJECT, "}}", is_object=True),
    markers=(MESSAGE,),
    shown=(ROLE, END),
)
OF_TOKEN = AnswerFormat(
    "gigachat3.1",
    found_by=((ROLE, END, CALL),),
    rank=3,
    syntax=CallSyntax(CALL + OBJECT, "}}", is_object=True),
    markers=(CALL,),
)
FORMATS = (FORMAT, OF_TOKEN)
