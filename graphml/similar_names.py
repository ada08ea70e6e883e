"""Names similar to a wrong one, for the hints of error messages. Knows nothing of what the names are of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 256  # characters of a wrong name that are looked at: a file may hold a megabyte of them


def similar(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names most similar to a wrong one, the most similar first; none where none is near."""
    return difflib.get_close_matches(name[:_LONGEST], list(known), most, 0.5)


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """A question to add to an error message: " Did you mean 'a' or 'b'?"; empty where none is near."""
    close = similar(name, known, most)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
