"""Tools of a conversation: the functions of Python files, and the question before each call.

Knows files, terminals and calls; nothing of models.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from graphml.api.tools import Tool, tools_of
from graphml.cli.terminal.console import Bars, say
from graphml.errors import UsageError
from graphml.loading.discovery import functions_from_file
from graphml.text.answers import ToolCall

YES = ("y", "yes")


def offered_tools(files: Sequence[Path] | None, yes: bool) -> tuple[Tool, ...]:
    """The public functions of Python files, which are run; UsageError where nobody could be asked."""
    if not files:
        if yes:
            raise UsageError("--yes: wanted --tools besides")
        return ()
    if not yes and not sys.stdin.isatty():
        raise UsageError("--tools: wanted --yes, or a terminal to ask on before each call")
    try:
        return tools_of([function for file in files for function in functions_from_file(file)])
    except UsageError as error:
        raise UsageError(f"--tools: {error}") from None


class Permission:
    """Whether a call may be made: asked on the terminal, unless `yes` says so of all."""

    def __init__(self, bars: Bars, yes: bool) -> None:
        self._bars, self._yes = bars, yes

    def __call__(self, call: ToolCall) -> bool:
        """Show the call; whether it may be made. Ctrl-C and an empty line are a no."""
        self._bars.close()
        # In ASCII: what a model writes may hold characters that hide others.
        shown = f"{call.name}({json.dumps(call.values())})"
        if self._yes:
            say(f"calls {shown}")
            return True
        try:
            with _typed_line():
                print(f"\ncall {shown}? [y/N] ", end="", file=sys.stderr, flush=True)
                return sys.stdin.readline().strip().lower() in YES
        except KeyboardInterrupt:
            say("")
            return False


@contextmanager
def _typed_line() -> Iterator[None]:
    """Within, a line is typed as usual, and Ctrl-C raises; what was typed before is no answer."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.platform == "win32":
            yield
            return
        import termios  # not on Windows

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        usual = termios.tcgetattr(keyboard)
        usual[0] |= termios.ICRNL
        usual[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, usual)
        try:
            yield
        finally:
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
    finally:
        signal.signal(signal.SIGINT, handler)
