"""How a program that measures or records talks: a line of JSON comes on stdin, another goes back on stdout.

The programs beside it import it by its bare name, in a Python that need not have graphml: it knows the
standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


class RefusedError(Exception):
    """What was asked cannot be done. kind: the name of graphml's error that is raised at the other end."""

    def __init__(self, text: str, kind: str = "UsageError") -> None:
        super().__init__(text)
        self.kind = kind


def serve(answer: Callable[[Any], dict[str, Any]]) -> None:
    """Answer each line until stdin ends. What anything else prints to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except RefusedError as error:
            found = {"error": str(error), "kind": error.kind}
        answers.write(json.dumps(found) + "\n")
        answers.flush()
