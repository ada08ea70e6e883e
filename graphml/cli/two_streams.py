"""Pieces of text to stdout and to stderr as they come. Knows no formats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import zip_longest


def write_both(out: Iterator[str], error: Iterator[str]) -> None:
    """Write the pieces of each, in turns."""
    for piece, other in zip_longest(out, error, fillvalue=""):
        for stream, text in ((sys.stdout, piece), (sys.stderr, other)):
            stream.write(text)
            stream.flush()
