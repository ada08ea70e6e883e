"""Names of nodes, which a model file may choose: made fit to print, and looked for when misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(name: str) -> str:
    """The name with what no file of text should hold, and backslashes, escaped; different names stay so."""
    return "".join(
        char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
        for char in name
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Known names like one that is not known, for an error message."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 3, 0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names[:8])}"
