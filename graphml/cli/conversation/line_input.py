"""Where the lines of a conversation come from: an edited prompt, a plain one on a dumb terminal, or a pipe.

Knows terminals and keys; nothing of models or of what a line means. prompt_toolkit is imported for the edited
prompt alone (0.2 s that nothing else pays).
"""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TextIO

from graphml import settings
from graphml.cli.conversation.input_history import FURTHER, PROMPT, InputHistory
from graphml.cli.terminal.console import say

HOW_TO_END = "Ctrl-C once more, Ctrl-D or /exit ends the conversation"
QUOTES = '"""'
HISTORY_FILE = "chat_history.jsonl"
_LOOKS_EVERY_S = 0.1
_NO_TEXT = re.compile("[\ud800-\udfff]")  # how Python reads bytes that are not UTF-8


@dataclass(frozen=True)
class LineInput:
    """lines: the inputs, until their end. interactive: a person is asked for them.

    while_working: what the terminal does between two prompts.
    """

    lines: Iterator[str]
    interactive: bool = False
    while_working: Callable[[], AbstractContextManager[None]] = nullcontext


def open_input(completions: Callable[[str], list[str]]) -> LineInput:
    """Return the input that fits stdin and the terminal.

    completions: from what was typed so far to the ways to go on that Tab offers.
    """
    shown = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if not sys.stdin.isatty() or shown is None:
        return LineInput(line.strip() for line in iter(sys.stdin.readline, ""))
    if settings.dumb_terminal():
        return LineInput(asked(lambda: _plain(shown), lambda: False), interactive=True)
    # 0.2 s that other inputs do not need
    from graphml.cli.conversation.edited_prompt import EditedPrompt, quiet_keys

    prompt = EditedPrompt(shown, completions, InputHistory(settings.state_folder() / HISTORY_FILE))
    return LineInput(asked(prompt.read, prompt.typed), True, lambda: quiet_keys(shown))


def asked(read: Callable[[], str], typed: Callable[[], bool]) -> Iterator[str]:
    """Yield what `read` returns until Ctrl-D, or until Ctrl-C twice in a row without an input.

    typed: whether Ctrl-C came at a line with text, which is then left behind.
    """
    warned = False
    while True:
        try:
            text = _whole(read(), read)
        except EOFError:
            return
        except KeyboardInterrupt:
            if typed():
                warned = False
            elif warned:
                return
            else:
                warned = True
                say(HOW_TO_END)
            continue
        warned = False
        yield tidy(text)


def _whole(line: str, read: Callable[[], str]) -> str:
    """An input; one between three quotes goes over several lines, as in ollama."""
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(read())
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines)


def tidy(text: str) -> str:
    """The input without bytes that are no text and without empty lines and spaces around it.

    The first of several lines keeps its indentation.
    """
    text = _NO_TEXT.sub("\ufffd", text).rstrip()
    return text.lstrip("\n") if "\n" in text.lstrip() else text.lstrip()


def _plain(shown: TextIO) -> str:
    """An input at a terminal without escape codes; a backslash ends a line that goes on."""
    lines = [_line(shown, PROMPT)]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_line(shown, FURTHER))
    return "\n".join(lines)


def _wait_for_line() -> None:
    """Return when a line is there. A Ctrl-C just before a read begins is not raised before the read ends."""
    while hasattr(select, "poll") and not select.select([sys.stdin], [], [], _LOOKS_EVERY_S)[0]:
        pass


def _line(shown: TextIO, prompt: str) -> str:
    shown.write(prompt)
    shown.flush()
    try:
        _wait_for_line()
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        shown.write("\n")
        raise
    if not line:
        shown.write("\n")
        raise EOFError
    return line.removesuffix("\n")
