"""The command as a process: signals, closed pipes, terminals, and what its start imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import tiny_model
from tests.stories import STORIES

COMMAND = [sys.executable, "-m", "graphml"]

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and terminals")


def heed_interrupts() -> None:
    """What a shell runs in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def endless(tmp_path: Path) -> list[str]:
    """A command that would go on for minutes."""
    model = tiny_model.write(tmp_path / "tiny.gguf", n_ctx=1 << 18)
    raw = ["--raw", "-p", "hello world", "-n", str(1 << 17)]
    return [*COMMAND, "run", str(model), *raw, "--backend", "reference"]


def test_the_version_imports_no_numpy_and_chat_no_prompt() -> None:
    script = (
        "import sys, graphml.cli.main; print(sorted({'numpy', 'jinja2', 'rich'} & set(sys.modules)));"
        "import graphml.cli.chat; print('prompt_toolkit' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n"


def test_help_and_completion_import_no_command() -> None:
    """What they say of the commands is read from their files: a shell waits for it at every key."""
    script = """
import sys
from graphml.cli.main import main
sys.argv = ["graphml", "--help"]
try:
    main()
finally:
    files = {name for name in sys.modules if name.startswith("graphml.") and name != "graphml.cli.main"}
    names = "cli", "cli.help_pages", "cli.terminal", "cli.terminal.console", "errors", "settings"
    names += "system", "system.closing", "system.progress_labels"
    cheap = {f"graphml.{name}" for name in names}
    print(sorted(files - cheap), "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[] False\n")
    assert " placement " in done.stdout
    assert "Show the backend of each node and why" in " ".join(done.stdout.replace("│", " ").split())
    asked = {"COMP_WORDS": "graphml pl", "COMP_CWORD": "1", "_GRAPHML_COMPLETE": "complete_bash"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env={**os.environ, **asked})
    assert done.stdout.split() == ["plan", "placement"]
    for typed, offered in (
        ("run smol", {"smollm2", "smollm2-360m", "smollm2-1.7b"}),
        ("run --overflow s", {"stop", "shift"}),
    ):
        words = f"graphml {typed}"
        asked = {
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
            "_GRAPHML_COMPLETE": "complete_bash",
        }
        done = subprocess.run(COMMAND, capture_output=True, text=True, env={**os.environ, **asked})
        assert set(done.stdout.split()) == offered


def test_a_run_imports_no_event_loop_and_without_a_template_no_jinja(endless: list[str]) -> None:
    """asyncio brings TLS with it: 8 MB of each process that answers a prompt. Jinja takes 50 ms."""
    script = """
import sys
from graphml.cli.main import main
try:
    main()
finally:
    print(sorted({"asyncio", "ssl", "jinja2", "graphml.api.engine"} & set(sys.modules)))
"""
    given = ["1" if one == str(1 << 17) else one for one in endless[len(COMMAND) :]]
    done = subprocess.run([sys.executable, "-c", script, *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['graphml.api.engine']"


@posix_only
def test_ctrl_c_exits_with_130(endless: list[str]) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(endless, **pipes, text=True, preexec_fn=heed_interrupts) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(4)) == 4
        process.send_signal(signal.SIGINT)
        complaint = process.communicate(timeout=20)[1]
        assert process.returncode == 130
    assert "Traceback" not in complaint


@posix_only
def test_a_closed_pipe_is_no_drama(endless: list[str]) -> None:
    with subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(4)) == 4
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(20) == 1


SHORT = [*COMMAND, "run", str(STORIES), "-n", "5", "--raw", "--backend", "reference"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*SHORT, "-p", ""], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("graphml: ")
    assert done.stderr.count("\n") == 1


@posix_only
def test_without_stdout_nothing_is_said() -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *SHORT, "-p", ""]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_prompt_that_is_no_text_is_read_as_far_as_it_is() -> None:
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(SHORT, input=b"Once \xff", capture_output=True, env=strict, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@posix_only
def test_in_a_chat_ctrl_c_stops_the_answer_only(tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{{ messages[-1]['content'] }}", encoding="utf-8")
    command = [
        *COMMAND,
        "chat",
        str(STORIES),
        "-n",
        "300",
        "--backend",
        "reference",
        "--template",
        str(template),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=0, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Once upon a time\n")
        process.stdin.flush()
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        process.stdin.write("/history\n/exit\n")
        process.stdin.flush()
        rest = process.stdout.read()
        assert process.wait(20) == 0
    assert "user: Once upon a time\n" in rest
    assert len(rest) < 1500


@posix_only
def test_on_a_terminal_there_are_remarks_and_no_control_characters() -> None:
    import pty  # not on Windows

    main_end, terminal = pty.openpty()
    command = [*COMMAND, "run", str(STORIES), "-p", "", "-n", "5", "--temp", "0", "--backend", "reference"]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                part = os.read(main_end, 4096)
            except OSError:  # Linux's way to say that the other end was closed
                break
            if not part:
                break
            shown += part
        assert process.wait(20) == 0
    os.close(main_end)
    assert b"Once upon a time" in shown
    assert b"answer 5 tokens" in shown
