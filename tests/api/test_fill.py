"""Infill: prompts as llama.cpp lays them out, what has no room, models without the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import TokenizerError, UsageError
from graphml.text.infill import infill_ids
from graphml.text.tokenizer import Tokenizer
from tests import tiny_model
from tests.looped import looped

FILL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
FILES = ["<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("coder") / "coder.gguf", more=FILL + FILES)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, backend="reference", n_batch=64, kv="f32") as opened:
        yield opened


def opened(folder: Path, **how: Any) -> Tokenizer:
    found = graphml.load_tokenizer(tiny_model.write(folder / "other.gguf", **how))
    assert found is not None
    return found


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(tokenizer.piece(one) for one in ids)


def test_the_parts_stand_in_the_order_that_is_asked_for(model: graphml.Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = infill_ids(tokenizer, "ab", "<|fim_middle|>c")
    assert spelled(tokenizer, ids) == "<|fim_prefix|>ab<|fim_suffix|><|fim_middle|>c<|fim_middle|>"
    first = tokenizer.fill_tokens["prefix"]
    assert (ids[0], ids.count(tokenizer.fill_tokens["middle"])) == (first, 1)  # a text spells no token
    ids = infill_ids(tokenizer, "ab", "c", order="spm")
    assert spelled(tokenizer, ids) == "<|fim_suffix|>c<|fim_prefix|>ab<|fim_middle|>"


def test_other_files_stand_before_as_qwen_has_them(model: graphml.Model, tmp_path: Path) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = infill_ids(tokenizer, "ab", "c", [("a.py", "x\n"), ("b.py", "y\n")])
    assert spelled(tokenizer, ids) == (
        "<|repo_name|>myproject\n<|file_sep|>a.py\nx\n<|file_sep|>b.py\ny\n<|file_sep|>filename\n"
        "<|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>"
    )
    bare = opened(tmp_path, more=FILL, add_bos=True)
    ids = infill_ids(bare, "ab", "c", [("a.py", "x\n")])
    assert ids[0] == tiny_model.BEGIN
    assert spelled(bare, ids[1:]) == (
        "\n\n--- snippet ---\n\nx\n<|fim_prefix|>ab<|fim_suffix|>c<|fim_middle|>"
    )


@looped(
    ("room", "before", "behind", "n_extra"),
    [(100, 30, 20, 30), (60, 30, 20, 7), (53, 30, 20, 0), (43, 30, 10, 0), (39, 27, 9, 0), (11, 6, 2, 0)],
)
def test_what_has_no_room_is_left_out(
    model: graphml.Model, room: int, before: int, behind: int, n_extra: int
) -> None:
    """The prefix's beginning, the suffix's end, and the first of the files."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    prefix, suffix = "abcdefghijklmnopqrstuvwxyzABCD", "01234567890123456789"
    extra = [("a", "z" * 100)]
    whole = infill_ids(tokenizer, prefix, suffix, extra)
    ids = infill_ids(tokenizer, prefix, suffix, extra, room=room)
    assert len(ids) <= room
    at, fill = ids.index(tokenizer.fill_tokens["prefix"]), tokenizer.fill_tokens
    n_extra = min(n_extra, room)
    assert ids[:at] == whole[: whole.index(fill["prefix"])][len(whole) - 53 - at :]
    if room < 100:
        assert at == n_extra
    text = spelled(tokenizer, ids[at:])
    assert text == f"<|fim_prefix|>{prefix[30 - before :]}<|fim_suffix|>{suffix[:behind]}<|fim_middle|>"


def test_a_gap_is_filled_by_sessions_engines_and_the_command(model: graphml.Model, path: Path) -> None:
    ids = model.fill_ids("hello ", " world", max_tokens=9)
    with model.session() as session:
        expected = "".join(token.piece for token in session.generate(ids, max_tokens=9))
    assert expected
    assert model.fill("hello ", " world", max_tokens=9) == expected
    assert graphml.fill("hello ", " world", max_tokens=9, model=model) == expected
    with model.engine(max_sequences=2) as engine:
        assert engine.submit(ids, max_tokens=9).result().text == expected
    arguments = ["run", str(path), "--backend", "reference", "-p", "hello ", "--suffix", " world", "-n", "9"]
    done = CliRunner().invoke(app, [*arguments, "--temp", "0"])
    assert (done.exit_code, done.stdout.rstrip("\n")) == (0, expected.rstrip("\n"))


def test_files_of_the_command_reach_the_prompt(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "shapes.py"
    file.write_text("PI")
    arguments = ["run", str(path), "--backend", "reference", "-p", "a", "--suffix", "b", "-n", "1", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--infill-extra", str(file), "--spm-infill"])
    ids = graphml.load_tokenizer(path).decode(_ids(done.stdout))
    assert "<|file_sep|>shapes.py\nPI<|file_sep|>" in ids
    assert ids.endswith("<|fim_suffix|>b<|fim_prefix|>a<|fim_middle|>")


def _ids(text: str) -> list[int]:
    import json

    found: list[int] = json.loads(text)["prompt_ids"]
    return found


def test_pad_and_file_tokens_end_the_text(model: graphml.Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    fill = tokenizer.fill_tokens
    assert {fill["pad"], fill["separator"], fill["repository"]} <= set(tokenizer.end_tokens)
    params = graphml.SamplingParams(logit_bias={fill["pad"]: 1e6})
    assert model.fill("a", "b", params) == ""


def test_wrong_arguments_are_refused(model: graphml.Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"order: wanted one of psm, spm; got 'mps'"):
        model.fill("a", "b", order="mps")
    with pytest.raises(UsageError, match=r"extra: wanted \(name, text\) of each file; got 'a'"):
        model.fill("a", "b", extra=["a"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"suffix: wanted"):
        model.fill("a", 5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"room: wanted at least 8 ids"):
        model.fill("a", "b", n_ctx=8)
    some = opened(tmp_path, more=FILL[:1])
    with pytest.raises(UsageError, match=r"no fill-in-the-middle token for suffix, middle; wanted a model"):
        infill_ids(some, "a", "b")
    none = tiny_model.write(tmp_path / "none.gguf", tokenizer=False)
    with pytest.raises(TokenizerError, match=r"none\.gguf: fill: wanted a model with a vocabulary"):
        graphml.fill("a", "b", model=none)


def test_a_text_that_was_cut_off_says_so(model: graphml.Model) -> None:
    found = model.fill("def f(x):", "return y", max_tokens=2)
    assert (found.stop_reason, repr(found)) == ("length", f"AnswerText({str(found)!r}, length)")
