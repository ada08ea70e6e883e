"""`graphml doctor MODEL`: each planted fault is found by name, and a sound file has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.weights import open_model
from graphml.weights.gguf_writing import TensorPlan, stored_values, writing_gguf
from graphml.weights.metadata import StoredValue, stored
from graphml.workshop.file_checks import file_findings
from tests import tiny_model
from tests.cli.test_commands import graphml_command

Arrays = dict[str, np.ndarray]
Values = dict[str, StoredValue]


def _changed(path: Path, change: Callable[[Arrays, Values], None]) -> Path:
    """The tiny model with other tensors or keys."""
    with open_model(path) as file:
        arrays = {name: tensor.numpy().astype(np.float32) for name, tensor in file.tensors.items()}
        values = stored_values(file.metadata)
        change(arrays, values)
        plans = [TensorPlan(name, "f32", array.shape) for name, array in arrays.items()]
        out = path.with_name("changed.gguf")
        with writing_gguf(out, values, plans) as written:
            for array in arrays.values():
                written.add([np.ascontiguousarray(array, np.float32).view(np.uint8).ravel()])
    return out


def _found(path: Path) -> Mapping[str, str]:
    with graphml.load(path, "reference") as model:
        faults: dict[str, str] = {}
        for finding in file_findings(model):
            faults[finding.where] = faults.get(finding.where, "") + f"{finding.severity}: {finding.what}\n"
        return faults


def _bad_number(arrays: Arrays, values: Values) -> None:
    arrays["blk.0.ffn_up.weight"][3, 4] = np.nan
    arrays["blk.0.ffn_up.weight"][3, 5] = np.inf


def _zeros(arrays: Arrays, values: Values) -> None:
    arrays["blk.1.attn_q.weight"][:] = 0


def _huge(arrays: Arrays, values: Values) -> None:
    arrays["blk.1.attn_q.weight"][0, 0] = 3e6


def _unused(arrays: Arrays, values: Values) -> None:
    arrays["blk.0.nobody.weight"] = np.ones((4, 4), np.float32)


def _no_template(arrays: Arrays, values: Values) -> None:
    del values["tokenizer.chat_template"]


def _failing_template(arrays: Arrays, values: Values) -> None:
    values["tokenizer.chat_template"] = stored("{{ messages[7].content.nothing.at_all }}")


def _deaf_template(arrays: Arrays, values: Values) -> None:
    values["tokenizer.chat_template"] = stored("Hello.")


def _rope_twice(arrays: Arrays, values: Values) -> None:
    values["llama.rope.scaling.type"] = stored("linear")
    values["llama.rope.scaling.factor"] = stored(2.0, "f32")
    arrays["rope_freqs.weight"] = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        (_bad_number, "blk.0.ffn_up.weight", "wrong: 2 of 2,048 numbers are not finite"),
        (_zeros, "blk.1.attn_q.weight", "odd: all numbers are 0"),
        (_huge, "blk.1.attn_q.weight", "odd: the largest number is 3e+06"),
        (_unused, "blk.0.nobody.weight", "odd: the architecture does not use this tensor"),
        (_no_template, "tokenizer.chat_template", "odd: is missing, though the vocabulary has <|im_start|>"),
        (_failing_template, "tokenizer.chat_template", "wrong: fails for one question"),
        (_deaf_template, "tokenizer.chat_template", "wrong: leaves the user's text out"),
        (_rope_twice, "llama.rope.scaling.type", "odd: says linear, and rope_freqs.weight scales rope, too"),
    ],
)
def test_a_fault_is_found(
    tmp_path: Path, change: Callable[[Arrays, Values], None], where: str, says: str
) -> None:
    found = _found(_changed(tiny_model.write(tmp_path / "tiny.gguf"), change))
    assert where in found, found
    assert found[where].startswith(says)


def test_a_pre_tokenizer_that_cuts_the_vocabulary_is_found(tmp_path: Path) -> None:
    words = [f"{n:04}" for n in range(0, 9999, 50)]

    def numbers(arrays: Arrays, values: Values) -> None:
        tokens = list(values["tokenizer.ggml.tokens"].read(None))
        values["tokenizer.ggml.tokens"] = stored([*tokens, *words], "string")
        values["tokenizer.ggml.token_type"] = stored(
            [*values["tokenizer.ggml.token_type"].read(None), *[1] * len(words)], "i32"
        )
        values["tokenizer.ggml.pre"] = stored("llama-bpe")  # digits by three; these tokens have four
        rows = np.random.default_rng(0).standard_normal((len(words), tiny_model.WIDTH)).astype(np.float32)
        for name in ("token_embd.weight", "output.weight"):
            if name in arrays:
                arrays[name] = np.concatenate([arrays[name], rows])

    found = _found(_changed(tiny_model.write(tmp_path / "tiny.gguf"), numbers))
    assert found["tokenizer.ggml.pre"].startswith("odd: 'llama-bpe' cuts ")


def test_a_sound_file_has_nothing(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    assert _found(path) == {}
    said = graphml_command("doctor", path).stdout
    assert said == f"{path}: nothing wrong or odd was found\n"
    bad = _changed(path, _bad_number)
    lines = graphml_command("doctor", bad, code=1).stdout.splitlines()
    assert lines[0].startswith("wrong  blk.0.ffn_up.weight: 2 of")
    assert (
        json.loads(graphml_command("doctor", bad, "--json", code=1).stdout)["findings"][0]["severity"]
        == "wrong"
    )
