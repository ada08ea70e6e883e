"""The protocol of peer programs: a line of JSON on stdin is answered by one on stdout.

The programs beside it import it by its bare name, in a Python that need not have graphml: it uses only the
standard library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


class RefusedError(Exception):
    """A request cannot be fulfilled. kind: the name of graphml's error that is raised at the other end."""

    def __init__(self, text: str, kind: str = "UsageError") -> None:
        super().__init__(text)
        self.kind = kind


def serve(answer: Callable[[Any], dict[str, Any]]) -> None:
    """Answer each line until stdin ends. All other output to stdout is redirected to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except RefusedError as error:
            found = {"error": str(error), "kind": error.kind}
        answers.write(json.dumps(found) + "\n")
        answers.flush()
