"""Files of messages: a JSON list of {"role": ..., "content": ...}, as other programs have it.

Knows files; what a message is, `graphml.text.messages` knows.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from graphml.errors import UsageError
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
        _replace(path, text.encode("utf-8", "replace"))  # a lone surrogate is no text
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"{str(path)!r}: cannot be written: {error}") from None


def _check_replaceable(path: Path) -> None:
    try:
        read_messages(path)
    except UsageError:
        raise UsageError(f"{path}: is there already and holds no messages; choose another name") from None


def _replace(path: Path, content: bytes) -> None:
    """Write a file beside the one that is there, and give it its name and mode; a link keeps its target."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".graphml-{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o7777)
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
