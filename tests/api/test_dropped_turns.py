"""Chats beyond their context: the oldest turns leave the prompt whole, the history keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from tests import tiny_model

N_CTX = 120
SYSTEM = "be kind"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=512)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, backend="reference", kv="f32") as opened:
        yield opened


def talk(chat: graphml.Chat, turns: int, first: int = 0) -> None:
    for number in range(first, first + turns):
        chat.add_user(f"m{number} hello")
        chat.respond()


def prompt_of(model: graphml.Model, messages: list[dict[str, object]]) -> list[int]:
    """The ids of these messages by the template, all of them evaluated."""
    chat = model.chat(n_ctx=512, max_tokens=0)
    chat.history = messages
    return model.encode(chat.render_turn(), parse_special=True)


def test_the_oldest_turns_leave_whole_and_the_history_keeps_them(model: graphml.Model) -> None:
    chat = model.chat(system=SYSTEM, max_tokens=4, n_ctx=N_CTX)
    talk(chat, 1)
    assert chat.dropped == []
    talk(chat, 11, first=1)
    history = chat.history
    assert [message["role"] for message in history] == ["system"] + ["user", "assistant"] * 12
    left = chat.dropped
    assert left == history[1 : 1 + len(left)]
    assert [message["role"] for message in left] == ["user", "assistant"] * (len(left) // 2)
    sent = [history[0], *history[1 + len(left) : -1]]
    assert sent[1]["content"] == f"m{len(left) // 2} hello"
    n_answer = chat.session.stats.n_gen
    assert chat.session.tokens[: len(chat.session.tokens) - n_answer] == prompt_of(model, sent)
    wanted = model.chat(n_ctx=N_CTX, max_tokens=4)  # the answer is that to the messages that were sent
    wanted.history = sent
    assert wanted.respond() == history[-1]["content"]


def test_several_turns_leave_at_a_time_and_no_others_until_it_is_full_again(model: graphml.Model) -> None:
    chat = model.chat(system=SYSTEM, max_tokens=4, n_ctx=N_CTX)
    counts = []
    for number in range(16):
        talk(chat, 1, first=number)
        counts.append(len(chat.dropped) // 2)
        assert chat.session.n_past <= N_CTX
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1] < 16
    steps = [later - earlier for earlier, later in pairwise(counts)]
    assert max(steps) > 1
    assert 0 in steps[steps.index(max(steps)) :]
    chat.reset()
    assert chat.dropped == []


def test_calls_and_results_leave_with_their_turn(model: graphml.Model) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "double", "arguments": "{}"}}
    turn = [
        {"role": "user", "content": "double it, please"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "8", "name": "double", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is eight."},
    ]
    chat = model.chat(max_tokens=2, n_ctx=N_CTX)
    greeting = {"role": "assistant", "content": "Hi."}
    last = {"role": "user", "content": "and now " + "hello " * 18}
    chat.history = [{"role": "system", "content": SYSTEM}, greeting, *turn, last]
    chat.respond()
    assert [message["role"] for message in chat.dropped] == [greeting["role"], *(one["role"] for one in turn)]
    assert chat.history[-2]["content"] == last["content"]


def test_a_newest_message_without_room_is_refused_and_nothing_leaves(model: graphml.Model) -> None:
    chat = model.chat(system=SYSTEM, max_tokens=4, n_ctx=N_CTX)
    talk(chat, 2)
    before = chat.history
    chat.add_user("hello " * 200)
    says = (
        r"the message has 400 tokens; .*--ctx; n_ctx in Python.*--overflow .*overflow in Python.*drop_turns"
    )
    with pytest.raises(graphml.ContextFullError, match=says):
        chat.respond()
    assert (chat.history, chat.dropped) == (before, [])
    talk(chat, 1)
    assert len(chat.history) == len(before) + 2


@pytest.mark.parametrize("overflow", ["stop", "error"])
def test_others_refuse_as_before(model: graphml.Model, overflow: str) -> None:
    chat = model.chat(system=SYSTEM, max_tokens=4, n_ctx=N_CTX, overflow=overflow)
    with pytest.raises(graphml.ContextFullError):
        talk(chat, 12)
    assert chat.dropped == []


def test_turns_can_be_taken_back_behind_those_that_left(model: graphml.Model) -> None:
    chat = model.chat(system=SYSTEM, max_tokens=4, n_ctx=N_CTX)
    talk(chat, 12)
    assert chat.dropped
    while len(chat.history) > 3:
        chat.undo()
    assert chat.dropped == []
    talk(chat, 1, first=1)
    assert len(chat.history) == 5
    chat.system = "be brief"
    talk(chat, 9, first=2)
    assert chat.history[0]["content"] == "be brief"
    assert chat.history[0] not in chat.dropped


def test_a_saved_chat_goes_on_without_what_left(model: graphml.Model, tmp_path: Path) -> None:
    chat = model.chat(system=SYSTEM, max_tokens=4, n_ctx=N_CTX)
    talk(chat, 10)
    chat.save(tmp_path / "chat.safetensors")
    again = model.restore(tmp_path / "chat.safetensors")
    assert isinstance(again, graphml.Chat)
    assert (again.dropped, again.history) == (chat.dropped, chat.history)
    for one in (chat, again):
        talk(one, 5, first=10)
    assert (again.dropped, again.history) == (chat.dropped, chat.history)
    assert again.session.tokens == chat.session.tokens


def run_chat(path: Path, lines: list[str], *options: str, code: int = 0) -> str:
    arguments = ["chat", str(path), "-n", "4", "-c", str(N_CTX), "--temp", "0", "--backend", "reference"]
    done = CliRunner().invoke(app, [*arguments, *options], input="\n".join(lines))
    assert done.exit_code == code, done.output
    return done.stderr


def test_the_terminal_is_told_once_what_leaves(path: Path) -> None:
    lines = [f"m{number} hello" for number in range(12)]
    told = run_chat(path, lines, "--stats")
    assert told.count("messages are no longer sent from now on (--overflow drop_turns;") == 1
    assert "; the oldest 4 messages are not sent" in told
    assert "; the oldest 8 messages are not sent" in told
    assert f"the context of {N_CTX} tokens is full" in told
    refused = run_chat(path, lines, "--overflow", "stop", code=1)
    assert "--overflow says" in refused
    assert "no longer sent" not in refused
