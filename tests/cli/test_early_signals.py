"""Signals that come while a command is being loaded."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from graphml.system.signals import keep, on_signal

# The first module of the command line that is imported sends the signal.
EARLY = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("graphml.cli"):
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{name})

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started by has left of them
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["graphml", *{words!r}]
runpy.run_module("graphml", run_name="__main__", alter_sys=True)
"""


def started(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that gets a signal while it is being loaded."""
    code = EARLY.format(name=name, words=list(words))
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", ["serve", "server", "--config /dev/null serve"])
def test_a_hangup_while_a_server_is_loaded_does_not_end_it(words: str) -> None:
    done = started("SIGHUP", *words.split(), "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("graphml ")


@pytest.mark.parametrize("words", ["--version", "run -p serve", "help serve", "--config serve --version"])
def test_a_hangup_ends_other_commands_as_it_ends_any(words: str) -> None:
    assert started("SIGHUP", *words.split()).returncode == -signal.SIGHUP


def test_an_interrupt_while_a_command_is_loaded_ends_it_without_a_traceback() -> None:
    done = started("SIGINT", "serve", "--version")
    assert (done.returncode, done.stderr) == (130, "")


def test_a_signal_that_was_kept_is_taken_once() -> None:
    before, calls = signal.getsignal(signal.SIGHUP), []

    async def take() -> None:
        for _ in range(2):
            on_signal(asyncio.get_running_loop(), "SIGHUP", lambda: calls.append(1))
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    try:
        keep("SIGHUP")
        os.kill(os.getpid(), signal.SIGHUP)
        assert not calls
        asyncio.run(take())
        assert calls == [1]
    finally:
        signal.signal(signal.SIGHUP, before)
