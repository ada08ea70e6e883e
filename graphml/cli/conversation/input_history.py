"""The history of inputs: what a person typed into `graphml chat`, one JSON string a line, for the user alone.

Knows one file; nothing of terminals. What cannot be read or written is left out: a history is worth no error.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from graphml.errors import GraphmlError, UsageError
from graphml.system.read_files import plain_bytes

LONGEST = 1 << 16  # characters of an input; a longer one is not kept
MOST = 1000  # inputs kept; the file holds up to twice as many between two starts
PRIVATE = 0o600
PROMPT, FURTHER = "> ", "  "
"""What is before an input at a terminal, and before each further line of it."""


class InputHistory:
    """The inputs of earlier conversations; `append` adds one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.inputs = self._read()
        if len(self.inputs) > 2 * MOST:
            self.inputs = self.inputs[-MOST:]
            self._write(self.inputs, os.O_TRUNC)

    def append(self, text: str) -> None:
        """Keep an input, unless it is the latest once more."""
        if len(text) > LONGEST or self.inputs[-1:] == [text]:
            return
        self.inputs.append(text)
        self._write([text], os.O_APPEND)

    def _read(self) -> list[str]:
        inputs = []
        with suppress(GraphmlError):
            for line in plain_bytes(self._path, UsageError).decode(errors="replace").splitlines():
                with suppress(ValueError, RecursionError):
                    value = json.loads(line)
                    if isinstance(value, str):
                        inputs.append(value)
        return inputs

    def _write(self, inputs: list[str], how: int) -> None:
        lines = "".join(json.dumps(text) + "\n" for text in inputs)
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | how, PRIVATE), "w") as file:
                self._path.chmod(PRIVATE)  # a file that was there may be open to others
                file.write(lines)
