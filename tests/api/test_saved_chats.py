"""Chats in files: the next turn is as if the chat had never ended, and evaluates only what is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner, Result

import graphml
from graphml import Chat, SamplingParams
from graphml.cli.main import app
from graphml.weights.tensor_file import write_tensors
from tests import tiny_model

WARM = SamplingParams(
    temperature=1.3, stop=("zz",), stop_tokens=frozenset({7}), logit_bias={5: 1.5, 9: float("-inf")}
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=512)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, threads=2, n_batch=16) as opened:
        yield opened


def begun(model: graphml.Model) -> Chat:
    chat = model.chat(system="be kind", max_tokens=9, n_ctx=400, seed=4, variables={"enable_thinking": False})
    for text in ("hello", "world <|im_end|> hello"):
        chat.add_user(text)
        chat.respond(WARM)
    return chat


def restored(model: graphml.Model, path: Path) -> Chat:
    found = model.restore(path)
    assert isinstance(found, Chat)
    return found


def test_a_restored_chat_answers_as_the_saved_one_does(model: graphml.Model, tmp_path: Path) -> None:
    chat = begun(model)
    chat.save(tmp_path / "one")
    again = restored(model, tmp_path / "one")
    assert (again.history, again.system, again.max_tokens) == (chat.history, "be kind", 9)
    assert again.session.chooses == WARM
    assert again.session.n_ctx == 400
    for one in (chat, again):
        one.add_user("what?")
    assert again.render_turn() == chat.render_turn()
    assert again.respond(WARM) == chat.respond(WARM)
    assert again.session.stats.n_prompt == chat.session.stats.n_prompt < 60
    assert again.session.tokens == chat.session.tokens


def test_how_a_chat_samples_is_saved_and_older_names_are_read(model: graphml.Model, tmp_path: Path) -> None:
    chat = model.chat(max_tokens=7, temperature=0.5, stop_tokens=[9], logit_bias={3: 1.0})
    chat.save(tmp_path / "one")
    assert restored(model, tmp_path / "one").params == chat.params
    with safe_open(tmp_path / "one", "np") as file:
        about = json.loads(file.metadata()["graphml"])["about"]
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    saved = json.loads(arrays["chat"].tobytes())
    saved["max_new"] = saved.pop("max_tokens")
    del saved["params"]
    arrays["chat"] = np.frombuffer(json.dumps(saved).encode(), np.uint8)
    write_tensors(tmp_path / "one", about, arrays)
    older = restored(model, tmp_path / "one")
    assert (older.max_tokens, older.params) == (7, None)


def test_variables_and_texts_of_any_kind_are_saved(path: Path, tmp_path: Path) -> None:
    template = tiny_model.CHATML + "{% if shout %}{{ names | join(',') }}{% endif %}"
    with graphml.load(path, "reference", template=template) as model:
        chat = model.chat(variables={"shout": True, "names": ["ä", "\ud800"]}, max_tokens=None)
        chat.add_user("a \U0001f600 \x00 \ud83d")
        chat.save(tmp_path / "one")
        again = restored(model, tmp_path / "one")
        assert again.render_turn() == chat.render_turn()
        assert again.max_tokens is None
        wrong = model.chat(variables={"x": object()})
        with pytest.raises(graphml.UsageError, match="save: wanted variables that JSON can hold"):
            wrong.save(tmp_path / "two")
        assert not (tmp_path / "two").exists()


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "messages": (lambda chat: chat.update(messages=[{"role": "x"}]), r"messages\[0\].role: wanted"),
    "none": (lambda chat: chat.pop("messages"), "messages: wanted a list"),
    "max_tokens": (lambda chat: chat.update(max_tokens=-1), "max_tokens: wanted a whole number"),
    "params": (lambda chat: chat.update(params=[1]), "params: "),
    "variables": (lambda chat: chat.update(variables=[1]), "variables: wanted a mapping"),
    "seen": (lambda chat: chat.pop("seen"), "seen: wanted a mapping"),
    "places": (lambda chat: chat["seen"].update(places=[[5, 5]]), "seen: .*do not rise"),
    "far": (lambda chat: chat["seen"]["places"].append([10**9, 1]), "seen: .*do not rise"),
    "ids": (lambda chat: chat["seen"].update(ids=["a"]), "seen: wanted a text, its ids"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_hostile_chats_are_refused(model: graphml.Model, tmp_path: Path, what: str) -> None:
    change, text = WRONG[what]
    path = tmp_path / "one"
    begun(model).save(path)
    with safe_open(path, "np") as file:
        about = json.loads(file.metadata()["graphml"])["about"]
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    chat = json.loads(arrays["chat"].tobytes())
    change(chat)
    arrays["chat"] = np.frombuffer(json.dumps(chat).encode(), np.uint8)
    write_tensors(path, about, arrays)
    with pytest.raises(graphml.UsageError, match=f"{path}: .*{text}"):
        model.restore(path)
    for content, reason in ((b"{", "no JSON"), (b"[1]", "wanted an object"), (b"[" * 99999, "no JSON")):
        write_tensors(path, about, arrays | {"chat": np.frombuffer(content, np.uint8)})
        with pytest.raises(graphml.UsageError, match=reason):
            model.restore(path)


def talk(path: Path, *lines: str, code: int = 0, options: tuple[str, ...] = ()) -> Result:
    arguments = ["chat", str(path), "-n", "3", "--backend", "reference", "--stats", *options]
    result = CliRunner().invoke(app, arguments, input="\n".join(lines))
    assert result.exit_code == code, result.output
    return result


def test_the_command_line_saves_and_loads_whole_chats(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.safetensors"
    first = talk(path, "/set temperature 0.7", "hello world", f"/save {file}", "hello", "/history")
    assert "2 messages saved to" in first.stderr
    second = talk(path, f"/load {file}", "/set temperature", "hello", "/history", "/save")
    assert "2 messages loaded from" in second.stderr
    assert "temperature  0.7" in second.stderr
    assert second.stdout.endswith(first.stdout.split("\n", 1)[1].split("\n", 1)[1])
    assert "4 messages saved to" in second.stderr
    with graphml.load(path, "reference") as model:
        model.session().save(tmp_path / "session")
        assert restored(model, file).history[0] == {"role": "user", "content": "hello world"}
    failed = talk(path, f"/load {tmp_path / 'session'}", "/history", code=1)
    assert "wanted a saved chat, got a session without messages" in failed.stderr


@pytest.mark.parametrize("name", ["talk.safetensors", "talk.json"])
def test_a_conversation_begins_with_what_was_saved(path: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    saved = talk(path, "hello world", f"/save {file}", "hello")
    went_on = talk(path, "/history", "hello", "/save", options=("--load", str(file)))
    assert "2 messages loaded from" in went_on.stderr
    assert went_on.stdout.startswith("user: hello world\nassistant: ")
    if file.suffix == ".safetensors":  # a text alone has lost what its tokens were
        assert went_on.stdout.splitlines()[-1] == saved.stdout.splitlines()[-1]
    assert "4 messages saved to" in went_on.stderr
    file.write_text("nonsense")
    assert "talk" in talk(path, options=("--load", str(file)), code=2).stderr
    said = talk(path, options=("--load", str(file), "--system", "x"), code=2).stderr
    assert "--load: wanted no --system" in said
