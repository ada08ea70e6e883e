"""Names of nodes, which a model file may choose: escapes them for printing, and suggests similar ones."""

from __future__ import annotations

from collections.abc import Iterable

from graphml.errors import similar


def printable(name: str) -> str:
    """The name with unprintable characters and backslashes escaped; different names stay different."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(
        char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
        for char in name
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Known names similar to an unknown one, for an error message."""
    names = list(known)
    close = similar(name, names)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names[:8])}"
