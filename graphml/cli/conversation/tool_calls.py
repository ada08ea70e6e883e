"""Tools of a conversation: functions of Python files and tools of MCP servers; the question before each call.

Knows files, terminals and calls; nothing of models.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphml.api.mcp_servers import CANCELLED, McpServers, McpTool
from graphml.api.tools import Tool, tools_of
from graphml.cli.terminal.console import Bars, say
from graphml.errors import UsageError
from graphml.loading.discovery import functions_from_file
from graphml.system.keyboard import keyboard_mode
from graphml.system.signals import interrupts
from graphml.text.answers import ToolCall

YES = ("y", "yes")
ALWAYS = ("a", "always")


def check_asking(tools: Sequence[Path] | None, mcp: Path | None, yes: bool) -> None:
    """UsageError where nobody could be asked before a call, or nothing could be called."""
    flags = [flag for flag, value in (("--tools", tools), ("--mcp", mcp)) if value]
    if yes and not flags:
        raise UsageError("--yes: wanted --tools or --mcp besides")
    if flags and not yes and not sys.stdin.isatty():
        raise UsageError(f"{flags[0]}: wanted --yes, or a terminal to ask on before each call")


def offered_tools(files: Sequence[Path] | None, servers: McpServers | None) -> tuple[Tool, ...]:
    """The public functions of Python files, which are run, and the tools of MCP servers."""
    try:
        functions = tools_of([function for file in files or () for function in functions_from_file(file)])
    except UsageError as error:
        raise UsageError(f"--tools: {error}") from None
    return tools_of([*functions, *map(_interruptible, servers.tools if servers is not None else ())])


def _interruptible(tool: McpTool) -> McpTool:
    """The tool, a call of which Ctrl-C cancels; the model is told, and the answer goes on."""

    def call(arguments: Mapping[str, Any]) -> str:
        try:
            with interrupts(signal.default_int_handler):
                return tool.call(arguments)
        except KeyboardInterrupt:
            say(f"{tool.name} was cancelled")
            return CANCELLED

    return replace(tool, function=call)


class Permission:
    """Whether a call may be made: asked on the terminal, unless `yes` or an earlier answer allows it."""

    def __init__(self, bars: Bars, yes: bool) -> None:
        self._bars, self._yes = bars, yes
        self._always = set[str]()

    def __call__(self, call: ToolCall) -> bool:
        """Show the call; whether it may be made. Ctrl-C and an empty line are a no."""
        self._bars.close()
        # In ASCII: what a model writes may hold characters that hide others.
        shown = f"{call.name}({json.dumps(call.values())})"
        if self._yes or call.name in self._always:
            say(f"calls {shown}")
            return True
        try:
            with _typed_line():
                print(f"\ncall {shown}? [y/N/always] ", end="", file=sys.stderr, flush=True)
                said = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            say("")
            return False
        if said in ALWAYS:
            self._always.add(call.name)
        return said in (*YES, *ALWAYS)


@contextmanager
def _typed_line() -> Iterator[None]:
    """Within, a line is typed as usual, and Ctrl-C raises; what was typed before is no answer."""
    with interrupts(signal.default_int_handler), keyboard_mode(lines=True):
        yield
