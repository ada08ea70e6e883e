"""Chat templates are rendered in kept processes: a hostile template can end its process, and nothing else.

Knows the limits of a rendering and the form of a request (`template_renderer`); knows nothing of messages.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.system.kept_processes import EndedError, KeptProcesses
from graphml.system.kept_program import FAILURE

MOST_PROCESSES = 4
LONGEST_LINE = 10  # digits of a line's number


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one rendering: a fixed part, and a part for each byte of the conversation.

    seconds: processor time. memory: bytes of the whole process, of which Python takes about 30 MB; macOS and
    Windows do not enforce it: there the time alone bounds it. output: bytes of the text.
    """

    seconds: float = 1.0
    seconds_per_byte: float = 5e-6
    memory: int = 256 << 20
    memory_per_byte: int = 32
    output: int = 4 << 20
    output_per_byte: int = 4


class RenderingError(Exception):
    """Why a template has no text. line: of the template, 0 if that is not known. over: it met a limit."""

    def __init__(self, reason: str, line: int = 0, over: bool = False) -> None:
        super().__init__(reason)
        self.line, self.over = line, over


class TemplateProcesses(KeptProcesses):
    """The processes that render."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("template_renderer.py"), MOST_PROCESSES)

    def answer(self, source: str, variables: dict[str, Any] | None, now: str, limits: TemplateLimits) -> str:
        """The text that a template makes of the variables; of None the names that it reads, in lines.

        now: the time in ISO's form. RenderingError where the template fails, or goes over its limits.
        """
        data = b"" if variables is None else marshal.dumps(variables)
        seconds = limits.seconds + limits.seconds_per_byte * len(data)
        memory = limits.memory + limits.memory_per_byte * len(data)
        most = limits.output + limits.output_per_byte * len(data)
        try:
            with self.one_of_them() as process:
                kind, text = process.answer(marshal.dumps((source, data, now)), seconds, memory, most)
        except EndedError as error:
            reason = {
                "start": f"no process of Python can be started: {error}",
                "length": f"the template writes more than {most:,} bytes",
                "memory": "the template needs too much memory",
                "time": f"the template takes longer than {seconds:.3g} s",
                "end": f"the process that renders it ended, or did not answer (exit code {error.code})",
            }[error.why]
            raise RenderingError(reason, over=error.why != "start") from None
        if kind == FAILURE:
            line, _, reason = text.partition(" ")
            raise RenderingError(reason, int(line) if line.isdecimal() and len(line) < LONGEST_LINE else 0)
        return text


PROCESSES = TemplateProcesses()
