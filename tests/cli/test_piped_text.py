"""Text that is piped to a command whose line has a text: both count, and nothing waits for ever."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphml.cli.main import app
from graphml.cli.options import standard_input
from graphml.cli.options.standard_input import text_beside
from graphml.errors import UsageError
from tests.api.test_embedding import write
from tests.cli.test_commands import REFERENCE, graphml_command
from tests.stories import STORIES

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="descriptors as POSIX has them")


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Makes a descriptor standard input."""
    streams = []

    def become(descriptor: int) -> None:
        streams.append(os.fdopen(descriptor, encoding="utf-8"))
        monkeypatch.setattr(sys, "stdin", streams[-1])

    yield become
    for stream in streams:
        stream.close()


@posix_only
def test_a_pipe_that_ends_is_read_and_named_in_scripts_too(stdin, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop whose pipe it was would otherwise end without a word."""
    for text, wanted in (("notes\nof two lines\n", "notes\nof two lines"), ("", ""), (" \n", "")):
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        stdin(reading)
        assert text_beside("the prompt") == wanted
        named = f"graphml: stdin: its {len(wanted)} characters come before the prompt\n"
        assert capsys.readouterr().err == (named if wanted else "")


@posix_only
def test_a_pipe_that_stays_open_is_left_alone_and_named(
    stdin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standard_input, "WAIT_S", 0.01)
    reading, writing = os.pipe()
    stdin(reading)
    assert text_beside("the prompt") == ""
    said = capsys.readouterr().err
    assert "nothing came in 0.01 s: the prompt alone; `-` or `-f -` waits for it" in said
    os.close(writing)
    ours, theirs = socket.socketpair()  # as Node's child processes have it
    stdin(ours.detach())
    assert text_beside("the prompt") == ""
    theirs.sendall(b"notes\n")
    theirs.close()
    assert text_beside("the prompt") == "notes"


@posix_only
def test_a_file_is_read_unless_something_else_reads_it(stdin, tmp_path: Path) -> None:
    """Of `while read line; do graphml ...; done < FILE` the file is the loop's."""
    file = tmp_path / "lines"
    file.write_text("first\nsecond\n")
    stdin(os.open(file, os.O_RDONLY))
    assert text_beside("the prompt") == "first\nsecond"
    begun = os.open(file, os.O_RDONLY)
    assert os.read(begun, 6) == b"first\n"
    stdin(begun)
    assert text_beside("the prompt") == ""
    assert sys.stdin.read() == "second\n"


@posix_only
def test_a_pipe_without_an_end_is_refused(stdin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "MOST_CHARACTERS", 9)
    reading, writing = os.pipe()
    os.write(writing, b"y\n" * 9000)  # and it stays open
    stdin(reading)
    with pytest.raises(UsageError, match="stdin: wanted at most 9 characters beside the prompt"):
        text_beside("the prompt")
    os.close(writing)


@posix_only
def test_a_device_changes_nothing(stdin) -> None:
    stdin(os.open("/dev/zero", os.O_RDONLY))  # endless where it is read
    assert text_beside("the prompt") == ""


@posix_only
def test_a_closed_stdin_changes_nothing() -> None:
    command = f'"{sys.executable}" -m graphml tokenize "{STORIES}" "Once upon a time" --ids <&-'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (json.loads(done.stdout), done.stderr) == ([1, 403, 407, 261, 378], "")


def test_piped_text_comes_before_the_prompt() -> None:
    both = graphml_command("tokenize", STORIES, "a time", "--ids", stdin="Once\n").stdout
    assert both == graphml_command("tokenize", STORIES, "Once\n\na time", "--ids").stdout
    run = ["run", STORIES, "--raw", "-n", 1, "--json", *REFERENCE]
    for options in (["upon"], ["-p", "upon"]):
        answer = json.loads(graphml_command(*run, *options, stdin="Once\n").stdout)
        assert answer["prompt"] == "Once\n\nupon"


def test_lines_that_are_piped_are_texts_before_those_of_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path / "rank.gguf", scores=True, pooling_type=4)
    options = ["rerank", path, "-q", "world", "--json", *REFERENCE]
    listed = json.loads(graphml_command(*options, "hello", stdin="world\nhello world\n").stdout)
    texts = {row["index"]: row["text"] for row in listed["results"]}
    assert [texts[i] for i in range(3)] == ["world", "hello world", "hello"]
    embed = ["embed", STORIES, "--pooling", "mean", *REFERENCE]
    one_by_one = graphml_command(*embed, "One", "Two").stdout
    assert graphml_command(*embed, "Two", stdin="One\n").stdout == one_by_one


def test_a_text_for_perplexity_is_piped_where_no_file_is_named(tmp_path: Path) -> None:
    text = "Once upon a time, there was a little girl named Lily. " * 8
    (tmp_path / "text").write_text(text)
    options = ["perplexity", STORIES, "-c", 48, "--chunks", 1, *REFERENCE]
    wanted = graphml_command(*options, "-f", tmp_path / "text").stdout
    for more in ([], ["-f", "-"]):
        assert graphml_command(*options, *more, stdin=text).stdout == wanted
    options[options.index(48)] = 500
    short = CliRunner().invoke(app, [*map(str, options)], input=text)
    assert "--ctx-size: wanted at most" in short.stderr
    assert "--file: wanted a text file" in graphml_command(*options, stdin="", code=2).stderr
