"""How the reasoning of an answer is found and ended: a value that a conversation's prompt makes.

Knows texts and ids; nothing of templates, and nothing of what samples.
"""

from __future__ import annotations

from typing import NamedTuple


class ReasoningEnd(NamedTuple):
    """What is forced where reasoning is to end.

    open, close: the texts around it; inside: whether the answer begins within. forced: the ids that end it,
    of a message and the closing text. spelled: the text that control tokens among the marks have. frame:
    texts that may stand before it. anywhere: whether it may begin behind text; else only white space and the
    frame are before it, or more reasoning.
    """

    open: str
    close: str
    inside: bool
    forced: tuple[int, ...]
    spelled: tuple[tuple[int, str], ...] = ()
    frame: tuple[str, ...] = ()
    anywhere: bool = False
