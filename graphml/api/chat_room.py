"""The room that a context has for a conversation: what is left out of a long one, and what has none.

Knows lengths and messages; nothing of sessions, templates or tokens' text.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml.errors import ContextFullError
from graphml.runtime.blocks.overflow import Overflow
from graphml.text.messages import Message


def room(
    messages: list[Message],
    n_total: int,
    n_new: int,
    kept: int,
    n_ctx: int,
    full: Overflow,
    length: Callable[[Message], int],
) -> tuple[int, int]:
    """Which ids of a conversation are left out, (keep, drop), where a full context is shifted.

    n_total, n_new: ids of the conversation, and those of them that are not held yet; kept: ids at its begin
    that stay; length: ids of a message's content. Where the last message has no room for a token of an
    answer, or nothing is shifted, unanswered messages are removed: ContextFullError.
    """
    if n_total < n_ctx:
        return 0, 0
    if full.shifts:
        if kept + n_new < n_ctx:
            return 0, 0  # the session makes room
        drop = max((n_total - kept) // 2, n_total + 1 - n_ctx)
        if kept + drop + length(messages[-1]) < n_total:
            return kept, drop
    removed: list[Message] = []
    while messages and _is_unanswered(messages[-1]):
        removed.append(messages.pop())
    n_message = min(sum(map(length, removed)), n_total)
    n_used = n_total - n_message
    used = f"of which {n_used} are used" if n_used < n_ctx else "all of which are used"
    raise ContextFullError(
        f"the message has {n_message} tokens; the context holds {n_ctx}, {used}, and an answer needs "
        "room too. Shorten it, begin anew, or give a longer context (--ctx; n_ctx in Python) if the "
        "model allows"
    )


def _is_unanswered(message: Message) -> bool:
    return message["role"] in ("user", "tool") or "tool_calls" in message
