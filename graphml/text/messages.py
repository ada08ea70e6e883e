"""Messages of a conversation: their type, and the check of messages from a caller or a file.

Knows roles and texts; nothing of templates, sessions or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from graphml.errors import UsageError

Message: TypeAlias = dict[str, str]
ROLES = ("system", "user", "assistant")


def checked_messages(value: object) -> list[Message]:
    """Return the messages with only their role and content; the UsageError names the first invalid one.

    The role is "user" or "assistant", of the first message also "system"; the content is text.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(f"messages: wanted a list of messages, got {type(value).__name__}")
    return [_checked(index, message) for index, message in enumerate(value)]


def _checked(index: int, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise UsageError(f"messages[{index}]: wanted role and content, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    roles = ROLES if index == 0 else ROLES[1:]
    if not isinstance(role, str) or role not in roles:
        only_first = " (system is the role of the first message alone)" if role == "system" else ""
        raise UsageError(f"messages[{index}].role: wanted {' or '.join(roles)}, got {role!r:.80}{only_first}")
    if not isinstance(content, str):
        raise UsageError(f"messages[{index}].content: wanted text, got {type(content).__name__}")
    return {"role": role, "content": content}
