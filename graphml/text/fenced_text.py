"""Text of messages that spells control tokens, fenced off so that it is encoded as the plain text that it is.

Knows a tokenizer; nothing of messages, templates or sessions.
"""

from __future__ import annotations

import re

from graphml.text.tokenizer import Tokenizer
from graphml.text.tokenizer.roles import ALWAYS_SHOWN

# Unicode keeps these two free for use inside a program: they fence off, through the template, what spells a
# control token in a message, so that it is encoded as the plain text that it is.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_FENCED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_FENCES = re.compile(f"[{OPEN}{CLOSE}]")
TURN_MARKS = (*ALWAYS_SHOWN, "<|end|>")
"""Tokens that make turns and are no control tokens to the tokenizer, so that any text may spell them."""


def fenced(tokenizer: Tokenizer, content: str) -> str:
    """The text with fences around whatever in it would be read as a control token."""
    content = _FENCES.sub("\ufffd", content)
    spelled = tokenizer.spelled_controls(content) | {mark for mark in TURN_MARKS if mark in content}
    if not spelled:
        return content
    longest_first = sorted(spelled, key=lambda text: (-len(text), text))
    return re.sub("|".join(map(re.escape, longest_first)), rf"{OPEN}\g<0>{CLOSE}", content)


def without_fences(text: str) -> str:
    """The text as a reader sees it."""
    return _FENCES.sub("", text)


def encode_fenced(tokenizer: Tokenizer, text: str, begins: bool) -> list[int]:
    """The ids of what a template has made of fenced texts; begins: it is the begin of a sequence."""
    ids: list[int] = []
    for index, part in enumerate(_FENCED.split(text)):
        if index % 2 and part in TURN_MARKS:
            ids += [id for half in (part[:1], part[1:]) for id in tokenizer.encode(half, add_special=False)]
        elif part:
            ids += tokenizer.encode(without_fences(part), add_special=False, parse_special=index % 2 == 0)
    bos = tokenizer.bos
    # Templates often write the begin token out; it must not stand there twice.
    if (
        begins
        and bos is not None
        and ids[:1] != [bos]
        and tokenizer.encode("", add_special=True)[:1] == [bos]
    ):
        ids.insert(0, bos)
    return ids
