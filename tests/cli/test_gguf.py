"""`graphml gguf`: keys set, files split, merged and compared, parts taken out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from graphml.cli.main import app
from graphml.weights import Tensor, open_model
from graphml.workshop.gguf_files import whole_files
from tests import golden


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gguf", *map(str, arguments)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(golden.file("llama-dense").read_bytes())
    return path


def value(path: Path, key: str) -> Any:
    with open_model(path) as file:
        return file.metadata.beginning(key, 0)[0], file.metadata[key]


@pytest.mark.parametrize(
    ("key", "text", "kind", "wanted"),
    [
        ("llama.context_length", "4096", None, ("u32", 4096)),
        ("llama.rope.freq_base", "20000", None, ("f32", 20000.0)),
        ("general.name", "123", None, ("string", "123")),
        ("mine.flag", "true", None, ("bool", True)),
        ("mine.list", "[1, 2]", None, ("u32", [1, 2])),
        ("mine.texts", '["a", "b"]', None, ("string", ["a", "b"])),
        ("mine.small", "-3", "i8", ("i8", -3)),
        ("llama.rope.scaling.attn_factor", "2", None, ("f32", 2.0)),
        ("tokenizer.ggml.add_eos_token", "false", None, ("bool", False)),
    ],
)
def test_a_key_is_set_in_its_type(key: str, text: str, kind: str | None, wanted: Any, model: Path) -> None:
    before = model.read_bytes()
    options = ["-o", model.parent / "new.gguf", *(["--type", kind] if kind else [])]
    done = command("set", *options, "--", model, key, text)
    assert done.exit_code == 0, done.output
    assert value(model.parent / "new.gguf", key) == wanted
    assert model.read_bytes() == before
    compared = command("diff", model, model.parent / "new.gguf")
    lines = compared.stdout.splitlines()
    assert (compared.exit_code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"key {key}: ")
    gguf.GGUFReader(model.parent / "new.gguf")


@pytest.mark.parametrize(
    ("key", "text", "kind", "message"),
    [
        ("llama.context_length", "much", None, "wanted a number of type u32"),
        ("llama.context_length", "-1", None, "wanted a number of type u32"),
        ("llama.context_length", "4096", "f32", "wanted u32, as the key has that type"),
        ("llama.attention.mine_scale", "8", "u32", "wanted f32, as the key is read in it"),
        ("general.alignment", "64", None, "how the file is laid out"),
        ("split.count", "2", None, "how the file is laid out"),
        ("mine.x", "1", "q8", "wanted one of string, bool"),
        ("mine.x", "300", "u8", "wanted a number of type u8"),
        ("mine.x", "yes", "bool", "wanted true or false"),
        ("mine.x", "1e50", "f32", "wanted a number of type f32"),
    ],
)
def test_values_of_other_types_are_refused(
    key: str, text: str, kind: str | None, message: str, model: Path
) -> None:
    before = model.read_bytes()
    done = command("set", model, *(["--type", kind] if kind else []), "--", key, text)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert model.read_bytes() == before


def test_a_file_is_replaced_whole(model: Path) -> None:
    (model.parent / "template.jinja").write_text("{{ messages }}\n")
    done = command("set", model, "tokenizer.chat_template", f"@{model.parent / 'template.jinja'}")
    assert done.exit_code == 0, done.output
    assert "nothing -> " in done.stdout
    assert value(model, "tokenizer.chat_template")[1].strip() == "{{ messages }}"
    shown = command("extract", model, "--template", "default")
    assert shown.stdout.strip() == "{{ messages }}"
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf", "template.jinja"]


@pytest.mark.parametrize("limit", [("--split-max-size", "400K"), ("--split-max-tensors", 7)])
def test_parts_are_merged_into_what_they_were(limit: tuple[Any, ...], model: Path) -> None:
    done = command("split", model, model.parent / "part.gguf", *limit)
    assert done.exit_code == 0, done.output
    parts = sorted(model.parent.glob("part-*.gguf"))
    assert parts[0].name == f"part-00001-of-{len(parts):05d}.gguf"
    assert len(parts) > 1
    kinds = gguf.GGUFReader(parts[1]).fields
    assert kinds["split.no"].types == kinds["split.count"].types == [gguf.GGUFValueType.UINT16]
    assert kinds["split.tensors.count"].types == [gguf.GGUFValueType.INT32]
    assert command("split", model, model.parent / "part.gguf", *limit).exit_code == 2  # without --force
    merged = model.parent / "merged.gguf"
    assert command("merge", parts[-1], merged).exit_code == 0
    same = command("diff", model, merged)
    assert (same.exit_code, same.stdout) == (0, "no difference\n")
    assert command("set", parts[1], "general.name", "x").exit_code == 2
    alone = command("set", parts[0], "general.name", "x", "-o", model.parent / "alone.gguf")
    assert alone.exit_code == 2
    assert f"alone.gguf: key 'split.no': the file is part 1 of {len(parts)}" in alone.output
    assert command("set", parts[0], "general.name", "x").exit_code == 0
    assert command("extract", parts[-1], "--metadata").exit_code == 0


def test_letters_of_patterns_in_a_name_are_letters(model: Path) -> None:
    output = model.parent / "a[b]*.gguf"
    for code in (0, 2):
        assert command("split", model, output, "--split-max-tensors", 7).exit_code == code


def test_what_has_no_parts_is_not_merged_or_split(model: Path) -> None:
    assert "it is whole" in command("merge", model, model.parent / "x.gguf").output
    assert (
        "would be one part"
        in command("split", model, model.parent / "x.gguf", "--split-max-size", "1G").output
    )
    assert "wanted one of" in command("split", model, model.parent / "x.gguf").output


def test_tensors_that_differ_are_told(model: Path) -> None:
    other = model.parent / "other.gguf"
    with open_model(model) as file:
        name = "blk.0.attn_q.weight"
        offset = (
            file.tensors[name].data.__array_interface__["data"][0]
            - np.frombuffer(file._maps[0].data, np.uint8).__array_interface__["data"][0]
        )
    content = bytearray(model.read_bytes())
    content[offset + 3] ^= 1
    other.write_bytes(content)
    told = command("diff", model, other)
    assert told.exit_code == 1
    assert told.stdout.startswith(f"tensor {name}: ")
    assert "NMSE" in told.stdout
    listed = json.loads(command("diff", model, other, "--json").stdout)["differences"]
    assert [(of["what"], of["name"]) for of in listed] == [("tensor", name)]


def test_parts_of_a_file_are_taken_out(model: Path) -> None:
    keys = json.loads(command("extract", model, "--metadata").stdout)
    assert keys["llama.block_count"] == {"type": "u32", "value": value(model, "llama.block_count")[1]}
    array = model.parent / "q.npy"
    assert command("extract", model, "--tensor", "blk.0.attn_q.weight", "-o", array).exit_code == 0
    with open_model(model) as file:
        assert np.array_equal(np.load(array), file.tensors["blk.0.attn_q.weight"].numpy())
    assert ".npy" in command("extract", model, "--tensor", "blk.0.attn_q.weight").output
    unknown = command("extract", model, "--tensor", "blk.0.attn_p.weight", "-o", model.parent / "p.npy")
    assert "blk.0.attn_" in unknown.output
    assert not (model.parent / "p.npy").exists()
    assert "wanted one of" in command("extract", model).output
    assert "no chat template" in command("extract", model, "--template", "tool_use").output


def test_parts_get_their_names_when_all_are_whole(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = model.parent / "part.gguf"
    assert command("split", model, output, "--split-max-tensors", 7).exit_code == 0
    before = {path.name: path.read_bytes() for path in model.parent.iterdir()}
    assert command("set", model, "general.name", "another").exit_code == 0
    before["model.gguf"] = model.read_bytes()
    pieces = whole_files._pieces
    with open_model(model) as file:
        last = [*file.tensors][-1]

    def full(tensor: Tensor) -> Iterator[Any]:
        if tensor.name == last:
            raise OSError(28, "No space left on device")
        yield from pieces(tensor)

    monkeypatch.setattr(whole_files, "_pieces", full)
    failed = command("split", model, output, "--split-max-tensors", 7, "--force")
    assert failed.exit_code == 2
    assert "part.gguf: cannot be written: No space left on device" in failed.output
    assert {path.name: path.read_bytes() for path in model.parent.iterdir()} == before


def test_a_part_is_taken_out_whole_or_not_at_all(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.read_bytes()
    refused = command("extract", model, "--metadata", "-o", model, "--force")
    assert (refused.exit_code, model.read_bytes() == before) == (2, True)
    assert "is read by this command" in refused.output
    array = model.parent / "q.npy"
    array.write_bytes(b"old")

    def full(stream: Any, values: Any) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    done = command("extract", model, "--tensor", "blk.0.attn_q.weight", "-o", array, "--force")
    assert done.exit_code == 2
    assert "cannot be written: No space left on device" in done.output
    assert array.read_bytes() == b"old"
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf", "q.npy"]


@pytest.mark.parametrize("more", ["", " end", " END"])
def test_long_texts_that_differ_behind_their_beginning_are_told(more: str, model: Path) -> None:
    other = model.parent / "other.gguf"
    text = "{{ messages }}" * 20
    assert command("set", model, "tokenizer.chat_template", f"{text} end").exit_code == 0
    assert command("set", model, "tokenizer.chat_template", text + more, "-o", other).exit_code == 0
    compared = command("diff", model, other)
    assert compared.exception is None or isinstance(compared.exception, SystemExit)
    if more == " end":
        assert (compared.exit_code, compared.stdout) == (0, "no difference\n")
        return
    assert compared.exit_code == 1
    assert compared.stdout.startswith("key tokenizer.chat_template: ")
    assert "from character 280 on" in compared.stdout or "from character 281 on" in compared.stdout


def test_a_new_key_near_another_is_asked_about(model: Path) -> None:
    """A misspelled key would be written, and read by nothing."""
    done = command("set", model, "llama.contextlength", "64", "-o", model.parent / "new.gguf")
    assert done.exit_code == 0
    said = "llama.contextlength: is a new key of type u32. Did you mean 'llama.context_length'?"
    assert said in " ".join(done.stderr.split())
    assert not command("set", model, "mine.x", "1", "-o", model.parent / "other.gguf").stderr
    again = command("set", model, "mine.x", "1", "-o", model.parent / "other.gguf")
    assert "--output: " in again.stderr


def test_sizes_of_parts_are_those_of_gguf_split(model: Path) -> None:
    """Whose K, M and G are of 1000; with an i they are of 1024."""
    largest = max(int(tensor.n_bytes) for tensor in gguf.GGUFReader(model).tensors)
    for text, code in ((f"{largest / 1000}K", 0), (f"{(largest - 1) / 1024}KiB", 2)):
        done = command("split", model, model.parent / f"p{code}.gguf", "--split-max-size", text)
        assert done.exit_code == code, done.output
    assert f"--split-max-size: wanted at least {largest} bytes, as " in done.stderr


def test_what_may_not_be_written_is_said_before_anything_is_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text would be read for minutes, and its numbers lost."""
    allowed: Any = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != model.parent and allowed(path, mode))
    words = ["imatrix", model, "-f", model.parent / "no.txt", "-o", model.parent / "new.gguf"]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 2
    assert "new.gguf: cannot be written: no permission, or a file system to read alone" in done.stderr


def test_a_folder_is_no_file_to_write(model: Path) -> None:
    (model.parent / "folder.gguf").mkdir()
    for force in ([], ["--force"]):
        done = command("merge", model, model.parent / "folder.gguf", *force)
        assert "folder.gguf: cannot be written: is a folder; wanted a file" in done.stderr
    done = command("extract", model, "--tensor", "output.weight")
    assert "wanted a name that ends in .npy; got ''" in done.stderr
