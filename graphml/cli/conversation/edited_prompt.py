"""A prompt with editing: a paste is one input, several lines, history, completion; by prompt_toolkit.

Knows keys and the terminal; nothing of models or of what an input means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from graphml.cli.conversation.input_history import FURTHER, PROMPT, InputHistory
from graphml.system.keyboard import keyboard_mode

PASTES_ARE_MARKED, PASTES_ARE_PLAIN = "\x1b[?2004h", "\x1b[?2004l"


class EditedPrompt:
    """Asks for one input after another; Alt-Enter, or Enter after a backslash, begins a further line."""

    def __init__(
        self,
        shown: TextIO,
        completions: Callable[[str], list[str]],
        history: InputHistory,
        keys: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=FURTHER,
            key_bindings=_keys(),
            history=_Earlier(history),
            completer=_Completer(completions),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
            input=keys,
            output=output or _output(shown),
        )

    def read(self) -> str:
        """Return the next input. EOFError for Ctrl-D at an empty prompt, KeyboardInterrupt for Ctrl-C."""
        return self._session.prompt()

    def typed(self) -> bool:
        """Whether the latest prompt was left with text in it."""
        return bool(self._session.default_buffer.text)


def _output(shown: TextIO) -> Output:
    output = create_output(shown)
    if isinstance(output, Vt100_Output):
        # Asking where the cursor is serves menus, of which there are none; the reply to it can come late and
        # then be taken for typed text, and terminals that do not reply get a warning printed.
        output.enable_cpr = False
    return output


def _keys() -> KeyBindings:
    bindings = KeyBindings()
    in_input = has_focus(DEFAULT_BUFFER)  # and not in a search of the history

    @bindings.add("enter", filter=in_input)
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\") and not buffer.document.text_after_cursor:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=in_input)
    def further_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _Earlier(History):
    """The history of inputs, as prompt_toolkit asks for it."""

    def __init__(self, history: InputHistory) -> None:
        super().__init__()
        self._history = history

    def load_history_strings(self) -> Iterable[str]:
        """The inputs, the latest first."""
        return reversed(list(self._history.inputs))

    def store_string(self, string: str) -> None:
        """Keep an input."""
        self._history.append(string.rstrip("\n"))


class _Completer(Completer):
    """Completes an input of one line, and shows of each way to go on its last word."""

    def __init__(self, completions: Callable[[str], list[str]]) -> None:
        self._completions = completions

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The texts that may stand in place of what is before the cursor."""
        before = document.text_before_cursor
        if document.line_count == 1:
            for completion in self._completions(before):
                yield Completion(completion, -len(before), display=completion.split()[-1])


@contextmanager
def quiet_keys(shown: TextIO) -> Iterator[None]:
    """Within, what is typed is not shown and waits for the next prompt, pastes whole; Ctrl-C interrupts."""
    # As the prompt reads keys, but Ctrl-C and Ctrl-Z still send signals. Nothing that is typed is lost.
    with keyboard_mode(lines=False) as changed:
        if not changed:
            yield
            return
        shown.write(PASTES_ARE_MARKED)
        shown.flush()
        try:
            yield
        finally:
            shown.write(PASTES_ARE_PLAIN)
            shown.flush()
