"""Text of messages that spells tokens with a meaning, fenced off so that it is encoded as plain text.

These are control tokens, and of the user-defined ones those that look like marks: `<|tool_call>`, `[ARGS]`.
Knows a tokenizer; nothing of messages, templates or sessions.
"""

from __future__ import annotations

import re
from typing import Final

from graphml.text.tokenizer import Tokenizer
from graphml.text.tokenizer.tokenizer import well_formed

# Unicode keeps these two free for use inside a program: they fence off, through the template, what spells a
# token in a message, so that it is encoded as the plain text that it is.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_FENCED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_FENCES = re.compile(f"[{OPEN}{CLOSE}]")
_MARK: Final = re.compile(r"(?=.*[\w|｜])[<\[\]|｜].+[>\]\[|｜]", re.DOTALL)
_ELEMENT: Final = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|s|span|strong|sub|sup|table|tbody|"
    r"td|tfoot|th|thead|tr|u|ul)>"
)
"""Elements of HTML, which some vocabularies (Gemma 3's) have as tokens: they are text like any other."""


def fenced(tokenizer: Tokenizer, content: str) -> str:
    """The text with fences around whatever in it would be read as a control token or a mark.

    Lone surrogates become U+FFFD.
    """
    content = without_meaning(content)
    within = tokenizer.tokens_within(content)
    spelled = [text for text, id in within.items() if tokenizer.is_special(id) or _is_mark(text)]
    if not spelled:
        return content
    longest_first = sorted(spelled, key=lambda text: (-len(text), text))
    return re.sub("|".join(map(re.escape, longest_first)), rf"{OPEN}\g<0>{CLOSE}", content)


def _is_mark(text: str) -> bool:
    return _MARK.fullmatch(text) is not None and _ELEMENT.fullmatch(text) is None


def without_meaning(text: str) -> str:
    """A text as a template may have it: without fences of its own and lone surrogates."""
    return _FENCES.sub("\ufffd", well_formed(text))


def restored(text: str) -> str:
    """A template's text with the fences that it has written as escapes of JSON or Python."""
    return text.replace("\\ufdd0", OPEN).replace("\\ufdd1", CLOSE)


def without_fences(text: str) -> str:
    """The text as a reader sees it."""
    return _FENCES.sub("", text)


def encode_fenced(tokenizer: Tokenizer, text: str, begins: bool) -> list[int]:
    """The ids of what a template has made of fenced texts; begins: it is the begin of a sequence."""
    ids: list[int] = []
    for index, part in enumerate(_FENCED.split(text)):
        if index % 2 and part in tokenizer.tokens_within(part):  # else halves of two that a template has cut
            ids += _plain(tokenizer, part)
        elif part:
            ids += tokenizer.encode(without_fences(part), add_special=False, parse_special=True)
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


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a fenced text; user-defined tokens are found in any, so they are cut after a character."""
    marks = [mark for mark, id in tokenizer.tokens_within(text).items() if not tokenizer.is_special(id)]
    ats = [at for mark in marks if len(mark) > 1 and (at := text.find(mark)) >= 0]
    if not ats:
        return tokenizer.encode(text, add_special=False, parse_special=False)
    cut = min(ats) + 1
    return _plain(tokenizer, text[:cut]) + _plain(tokenizer, text[cut:])
