"""`graphml run --logprobs`: colours on a terminal, a table elsewhere, and JSON."""

from __future__ import annotations

import io
import json
import math
import sys

import pytest
from typer.testing import CliRunner

from graphml.cli.main import app
from graphml.cli.terminal.shown_answer import TokenColours, as_json, table_of
from graphml.sampling.candidates.logprobs import ScoredToken, TokenLogprobs
from tests.stories import STORIES

RUN = ["run", str(STORIES), "--raw", "-p", "Once upon", "--max-tokens", "3", "--logprobs", "2"]


def scored(text: bytes, probability: float) -> TokenLogprobs:
    logprob = math.log(probability) if probability else -math.inf
    return TokenLogprobs(7, text, logprob, 2, 0.5, (ScoredToken(8, b"|x", math.log(0.5)),))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Session:
    """What has generated two pieces of three tokens."""

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs = [None, scored(b"p", 0.95)]
        self.prompt_ids = [1, 2]


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    session = Session()
    colours = TokenColours(session)
    colours.write_prompt()
    session.logprobs.append(scored(b"a", 0.3))
    colours.write("a")
    session.logprobs += [scored(b"b\xc3", 0.99), scored(b"\xa9", 0.01)]
    colours.write("b\x1b\u00e9")
    colours.write(" end")
    return stream.getvalue()


def test_pieces_have_the_colour_of_their_least_likely_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = shown(monkeypatch, Terminal())
    assert written == "\x1b[32mp\x1b[0m\x1b[33ma\x1b[0m\x1b[31mb\u00e9\x1b[0m end"


def test_without_colours_the_text_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO()) == "pab\x1b\u00e9 end"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(monkeypatch, Terminal()) == "pab\u00e9 end"


def test_a_table_and_json_say_all() -> None:
    lines = table_of([None, scored(b"a b\n", 0.25)]).splitlines()
    assert [cell.strip() for cell in lines[0].split(" | ")] == [
        "| token", "probability", "logprob", "rank", "entropy", "most likely |",
    ]  # fmt: skip
    assert lines[2].split()[1:-1] == [
        "'a", "b\\n'", "|", "0.2500", "|", "-1.3863", "|", "2", "|", "0.500", "|", "'\\|x'", "0.500",
    ]  # fmt: skip
    assert as_json(None) is None
    found = as_json(scored(b"\xc3", 0.0))
    assert found is not None
    assert (found["token"], found["bytes"], found["logprob"]) == ("\ufffd", [0xC3], -9999.0)
    assert found["top_logprobs"] == [{"id": 8, "token": "|x", "logprob": math.log(0.5)}]


def test_the_command_writes_tables_or_json() -> None:
    done = CliRunner().invoke(app, [*RUN, "--prompt-logprobs", "0"])
    assert done.exit_code == 0
    answer, prompt, table = done.stdout.split("\n\n")
    assert (answer, prompt.splitlines()[0], table.splitlines()[0]) == ("a time,", "prompt", "answer")
    assert len(prompt.splitlines()) == 5
    assert "' time' 0.999" in table
    done = CliRunner().invoke(app, [*RUN, "--json"])
    found = json.loads(done.stdout)
    assert [one["id"] for one in found["logprobs"]] == found["ids"]
    assert "prompt_logprobs" not in found


def test_a_conversation_shows_none_of_its_prompts() -> None:
    done = CliRunner().invoke(app, ["chat", str(STORIES), "--prompt-logprobs", "0"], input="hi\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--prompt-logprobs: wanted graphml run" in done.stderr
