"""Files of messages: a JSON list of {"role": ..., "content": ...}, as other programs have it.

Knows files; what a message is, `graphml.text.messages` knows.
"""

from __future__ import annotations

import json
from pathlib import Path

from graphml.errors import UsageError
from graphml.system.replaced_file import replacing
from graphml.text.messages import Message, checked_messages

LARGEST_BYTES = 1 << 26


def read_messages(path: Path) -> list[Message]:
    """Return the messages of a file; it may also be an object with them as "messages", as requests are."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: " + ("is not a file" if path.exists() else "no such file"))
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path}: wanted at most {LARGEST_BYTES} bytes, got {path.stat().st_size}")
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from None
    if isinstance(value, dict) and "messages" in value:
        value = value["messages"]
    try:
        return checked_messages(value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def write_messages(path: Path, messages: list[Message]) -> None:
    """Write the messages; a file that is there is replaced if it holds messages, and left alone otherwise.

    It is replaced whole or not at all: a full disk, or a kill, leaves what was there.
    """
    try:
        if path.exists():
            _check_replaceable(path)
        text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
        with replacing(path) as partial:
            partial.write_bytes(text.encode("utf-8", "replace"))  # a lone surrogate is no text
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"{str(path)!r}: cannot be written: {error}") from None


def _check_replaceable(path: Path) -> None:
    try:
        read_messages(path)
    except UsageError:
        raise UsageError(f"{path}: is there already and holds no messages; choose another name") from None
