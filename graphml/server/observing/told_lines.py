"""Lines for the operator on stderr. One that cannot be written, as on a full disk, stops nobody.

Knows lines; nothing of what they say.
"""

from __future__ import annotations

import contextlib
import sys


def tell(line: str) -> None:
    """Write a line, or none."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
        print(line, file=sys.stderr, flush=True)
