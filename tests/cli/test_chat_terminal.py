"""`graphml chat` on a terminal, as a person uses it: pastes, Ctrl-C, typing ahead, dumb terminals."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import tiny_model
from tests.cli.scripted_chat import call_of, scripted_options
from tests.cli.test_process import COMMAND
from tests.mcp_server import by_stdio, wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals")
CTRL_C, CTRL_D, ENTER = b"\x03", b"\x04", b"\r"
PASTES_ARE_MARKED, PASTES_ARE_PLAIN = b"\x1b[?2004h", b"\x1b[?2004l"
PROMPT = b">"  # the space after it is a movement of the cursor


class Person:
    """Someone at the other end of a terminal: types, and waits for what is shown."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.seen = terminal, b""

    def type(self, *keys: bytes) -> None:
        for one in keys:
            os.write(self.terminal, one)

    def wait_for_answer(self) -> None:
        """Return when the prompt has ended and something of the answer is shown."""
        self.wait_for(PASTES_ARE_PLAIN)
        self.wait_for(PASTES_ARE_MARKED)
        if not self.seen:
            self.seen += os.read(self.terminal, 1 << 16)

    def wait_for(self, text: bytes) -> bytes:
        """Return what is shown up to this text, counted from where the last waiting ended."""
        end = time.monotonic() + 20
        while text not in self.seen and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.5)[0]:
                try:
                    part = os.read(self.terminal, 1 << 16)
                except OSError:  # Linux's way to say that the other end was closed
                    break
                self.seen += part
        before, found, self.seen = self.seen.partition(text)
        assert found, f"waited for {text!r} and saw {before!r}"
        return before


@pytest.fixture
def chat(tmp_path: Path) -> Callable[..., object]:
    model = tiny_model.write(tmp_path / "tiny.gguf", n_ctx=1 << 14)

    @contextmanager
    def at_terminal(term: str, *options: str, command: str = "chat") -> Iterator[Person]:
        import pty  # not on Windows

        person_end, terminal = pty.openpty()
        words = [*COMMAND, command, str(model), "--backend", "reference", *options]
        environment = {**os.environ, "TERM": term, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
        ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        # A session of its own, whose terminal this is: Ctrl-C arrives as it does from a keyboard.
        # Where the tests run in the background, it would be ignored.
        take_it = "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        take_it += "signal.signal(signal.SIGINT, signal.SIG_DFL); "
        words = [sys.executable, "-c", take_it + "os.execv(sys.argv[1], sys.argv[1:])", *words]
        with subprocess.Popen(words, **ends, env=environment, start_new_session=True) as process:
            os.close(terminal)
            try:
                yield Person(person_end)
                assert process.wait(30) == 0
            finally:
                process.kill()
                os.close(person_end)

    return at_terminal


def test_a_conversation_at_a_terminal(chat: Callable[..., object], tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"

    def messages() -> list[str]:
        return [one["content"] for one in json.loads(saved.read_text())][::2]

    # No answer ends by itself before the person has typed.
    with chat("xterm", "-n", "2", "--stats", "--logit-bias", f"{tiny_model.END}-inf") as person:
        # Pasted while the model is loaded.
        person.wait_for(PASTES_ARE_MARKED)
        person.type(b"\x1b[200~first line\nsecond line\n\x1b[201~", ENTER)
        person.wait_for(b"answer 2 tokens")
        person.wait_for(PROMPT)
        person.type(b"half a li")
        person.wait_for(b"half a li")
        person.type(CTRL_C)
        person.wait_for(PROMPT)
        # An answer that would go on for minutes.
        person.type(b"/set max_tokens -1", ENTER)
        person.wait_for(b"max_tokens  -1")
        person.wait_for(PROMPT)
        person.type(b"hello \xf0\x9f\x98\x80", ENTER)
        person.wait_for_answer()
        person.type(CTRL_C)
        assert b"^C" not in person.wait_for(b"stopped: what was said is kept")
        person.wait_for(PROMPT)
        person.type(b"/set max_tokens 99", ENTER)
        person.wait_for(b"max_tokens  99")
        person.wait_for(PROMPT)
        # Pasted while there is an answer.
        person.type(b"\xff", ENTER)
        person.wait_for_answer()
        person.type(b"\x1b[200~ahead\nof the end\x1b[201~", ENTER)
        person.wait_for(b"ended at 99 tokens")
        person.wait_for(b"ended at 99 tokens")
        person.wait_for(PROMPT)
        person.type(b"/save " + bytes(saved), ENTER)
        person.wait_for(b"8 messages saved")
        person.wait_for(PROMPT)
        person.type(CTRL_C)
        person.wait_for(b"Ctrl-C once more")
        person.wait_for(PROMPT)
        person.type(CTRL_C)
        person.wait_for(PASTES_ARE_PLAIN)
    assert messages() == ["first line\nsecond line", "hello \N{GRINNING FACE}", "\ufffd", "ahead\nof the end"]
    if sys.platform == "linux":
        history = tmp_path / "graphml" / "chat_history.jsonl"
        assert history.stat().st_mode & 0o777 == 0o600
        assert "half a li" not in history.read_text()
        assert json.loads(history.read_text().splitlines()[0]) == "first line\nsecond line"


def test_run_without_a_prompt_is_a_conversation(chat: Callable[..., object], tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    with chat("dumb", "-n", "2", command="run") as person:
        person.wait_for(b"/help lists the commands")
        person.wait_for(PROMPT)
        for line in (b'"""two', b'  lines"""'):
            person.type(line, ENTER)
            person.wait_for(PROMPT)
        person.type(b"/save " + bytes(saved), ENTER)
        person.wait_for(b"2 messages saved")
        person.wait_for(PROMPT)
        person.type(b"/exit", ENTER)
    assert json.loads(saved.read_text())[0]["content"] == "two\n  lines"


def test_a_dumb_terminal_gets_no_escape_codes(chat: Callable[..., object]) -> None:
    with chat("dumb", "-n", "2") as person:
        seen = person.wait_for(b"> ")
        person.type(b"half a li", CTRL_C)
        seen += person.wait_for(b"Ctrl-C once more")
        seen += person.wait_for(b"> ")
        person.type(b"one\\\n")
        seen += person.wait_for(b"  ")
        person.type(b"two\n")
        seen += person.wait_for(b"ended at 2 tokens")
        seen += person.wait_for(b"> ")
        person.type(b"/history\n")
        seen += person.wait_for(b"user: one\r\ntwo\r\nassistant: ")
        seen += person.wait_for(b"> ")
        person.type(CTRL_D)
        seen += person.wait_for(b"\r\n")
    assert b"\x1b" not in seen
    assert b"user: half" not in seen


def test_each_call_of_a_tool_is_asked_about(chat: Callable[..., object], tmp_path: Path) -> None:
    answers = (call_of(4), "It is 8.", call_of(5), "Then not.", call_of(6), "Stopped.")
    options = scripted_options(tmp_path, tmp_path / "tiny.gguf", *answers)
    for term in ("xterm", "dumb"):
        (tmp_path / "calls.txt").unlink(missing_ok=True)
        with chat(term, *options) as person:
            for key, x, answer in (
                (b"y\r", 4, b"It is 8."),
                (b"\r", 5, b"Then not."),
                (CTRL_C, 6, b"Stopped."),
            ):
                person.wait_for(PROMPT)
                person.type(b"go", ENTER)
                person.wait_for(b'call double({"x": %d})? [y/N/always] ' % x)
                person.type(key)
                person.wait_for(answer)
            person.wait_for(PROMPT)
            person.type(CTRL_D)
        assert (tmp_path / "calls.txt").read_text() == "4;"


def test_tools_of_a_server_are_listed_asked_about_and_cancelled(
    chat: Callable[..., object], tmp_path: Path
) -> None:
    calls = tmp_path / "calls.txt"
    answers = (
        *(call_of(4, "own__double"), "It is 8.", call_of(5, "own__double"), "It is 10."),
        *('<tool_call>\n{"name": "own__hang", "arguments": {}}\n</tool_call>', "Stopped."),
        *('<tool_call>\n{"name": "own__steer_it", "arguments": {}}\n</tool_call>', "Done."),
    )
    options = scripted_options(tmp_path, tmp_path / "tiny.gguf", *answers)[2:]
    file = by_stdio(tmp_path / "mcp.json", env={"CALLS": str(calls)})
    with chat("dumb", "--mcp", str(file), *options) as person:
        person.wait_for(PROMPT)
        person.type(b"/tools", ENTER)
        person.wait_for(b"own__double    Double a number.")
        assert b"Steer [2J<|im_end|>" in person.wait_for(b"own__header")
        person.wait_for(b"\r\n>")
        person.type(b"go", ENTER)
        person.wait_for(b'call own__double({"x": 4})? [y/N/always] ')
        person.type(b"always\r")
        person.wait_for(b"It is 8.")
        person.wait_for(PROMPT)
        person.type(b"go", ENTER)
        person.wait_for(b'calls own__double({"x": 5})')
        person.wait_for(b"It is 10.")
        assert calls.read_text() == "4;5;"
        person.wait_for(PROMPT)
        person.type(b"go", ENTER)
        person.wait_for(b"call own__hang({})? [y/N/always] ")
        person.type(b"y\r")
        wait_for(calls, "hangs")
        person.type(CTRL_C)
        person.wait_for(b"own__hang was cancelled")
        person.wait_for(b"Stopped.")
        person.wait_for(PROMPT)
        person.type(b"go", ENTER)
        person.wait_for(b"call own__steer_it({})? [y/N/always] ")
        person.type(b"y\r")
        person.wait_for(b"Done.")
        person.wait_for(PROMPT)
        person.type(b"/history", ENTER)
        seen = person.wait_for(b"assistant: Done.")
        assert b"tool: Error: the user cancelled this call" in seen
        assert b"tool: [2J<|im_end|>" in seen
        assert b"\x1b" not in seen
        person.type(CTRL_D)
