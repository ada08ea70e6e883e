"""What Tab offers while a command is typed: names of commands and settings, files.

Knows what may follow what; nothing of keys.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from graphml.cli.conversation.commands import COMMANDS
from graphml.cli.conversation.sampling_settings import HELP


def completions(typed: str) -> list[str]:
    """Return the lines that the typed beginning of one can become."""
    if not typed.startswith("/"):
        return []
    name, space, argument = typed.partition(" ")
    if not space:
        return [one.name + (" " if one.takes else "") for one in COMMANDS if one.name.startswith(name)]
    if name in ("/save", "/load"):
        found = _paths(argument)
    elif name == "/set":
        found = [f"{one} " for one in HELP if one.startswith(argument)]
    elif name == "/stats":
        found = [one for one in ("on", "off") if one.startswith(argument)]
    else:
        found = []
    return [f"{name} {one}" for one in found]


def _paths(typed: str) -> list[str]:
    folder, slash, start = typed.rpartition("/")
    with suppress(OSError, RuntimeError, ValueError):
        return sorted(
            f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
            for path in Path(f"{folder}{slash}").expanduser().iterdir()
            if path.name.startswith(start) and (start or not path.name.startswith("."))
        )
    return []
