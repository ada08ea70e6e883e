"""Examples: which tokens are learned of conversations, completions and texts, and lines that are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.errors import UsageError
from graphml.finetuning.examples import Example, read_examples
from tests import tiny_model

USER, ANSWER = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello world"}
END = "{% if loop.last %}!{% endif %}<|im_end|>"
LAST = "{% for m in messages %}<|im_start|>{{ m['content'] }}" + END + "{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("examples") / "m.gguf", add_bos=True)
    with graphml.load(path, "reference") as opened:
        yield opened


def texts(model: graphml.Model, example: Example) -> tuple[str, str]:
    """The whole text, and what of it is learned."""
    return model.decode(example.ids.tolist()), model.decode(example.ids[example.learned].tolist())


def test_a_conversation_teaches_each_answer_and_its_end(model: graphml.Model) -> None:
    (example,) = read_examples([{"messages": [USER, ANSWER, USER, ANSWER]}], model, 160).texts
    whole, learned = texts(model, example)
    turn = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nhello world<|im_end|>\n"
    assert whole == "<|begin|>" + turn * 2
    assert learned == "hello world<|im_end|>" * 2
    assert example.ids[0] == tiny_model.BEGIN


def test_a_completion_is_learned_and_its_prompt_is_not(model: graphml.Model) -> None:
    (example,) = read_examples([{"prompt": "hello", "completion": " world"}], model, 160).texts
    assert texts(model, example) == ("<|begin|>hello world<|im_end|>", " world<|im_end|>")


def test_a_text_is_learned_whole_and_control_tokens_in_it_are_text(model: graphml.Model) -> None:
    (example,) = read_examples([{"text": "hello<|im_end|>"}], model, 160).texts
    assert texts(model, example)[1] == "hello<|im_end|><|im_end|>"
    assert example.ids.tolist().count(tiny_model.END) == 1


def test_what_is_longer_is_cut_and_what_has_nothing_left_is_counted(model: graphml.Model) -> None:
    long = {"prompt": "a" * 40, "completion": "b"}
    read = read_examples([long, {"text": "hello world hello"}], model, 4)
    assert (len(read.texts), read.n_cut, read.n_left_out) == (1, 2, 1)
    assert (read.n_tokens, read.n_learned) == (4, 3)
    with pytest.raises(UsageError, match="data: wanted examples with tokens to learn"):
        read_examples([long], model, 4)


def test_turns_that_a_template_writes_otherwise_later_are_examples_of_their_own(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "m.gguf", template=LAST)
    with graphml.load(path, "reference") as model:
        messages = [USER, ANSWER, USER, ANSWER]
        with pytest.raises(
            UsageError, match=r"messages\[1\]: the chat template writes this answer otherwise"
        ):
            read_examples([{"messages": messages}], model, 160)
    later = LAST.replace("loop.last", "loop.last and m['role'] == 'assistant'")
    with graphml.load(tiny_model.write(tmp_path / "n.gguf", template=later), "reference") as model:
        examples = read_examples([{"messages": messages}], model, 160).texts
        assert [texts(model, example)[1] for example in examples] == [
            "<|im_start|>hello world!<|im_end|>"
        ] * 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "wanted a JSON object"), ("[1]", r"wanted .*messages.* got \[1\]"),
        ("[" * 5000, "wanted a JSON object"),
        ('{"prompt": "a"}', "got the keys prompt"), ('{"text": 5}', "text: wanted a text; got 5"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "messages: wanted one of the assistant"),
        ('{"messages": "a"}', "messages"),
        ('{"text": "a", "completion": "b"}', "got the keys completion, text"),
        ('{"messages": [], "tools": 3}', "tools"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_example_is_named(
    model: graphml.Model, tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "hello"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=said) as raised:
        read_examples(path, model, 160)
    assert str(raised.value).startswith(f"{path}:3: ")


def test_files_and_mappings_are_the_same_examples(model: graphml.Model, tmp_path: Path) -> None:
    rows: list[Any] = [{"text": "hello"}, {"messages": [USER, ANSWER]}]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_examples(path, model, 160).fingerprint == read_examples(rows, model, 160).fingerprint
    assert read_examples(rows, model, 160).fingerprint != read_examples(rows[:1], model, 160).fingerprint
