"""Overrides of metadata: a model runs as a file with these values would; what nobody reads is refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import graphml
from graphml import UsageError
from graphml.cli.main import app
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.metadata_overrides import parse_overrides
from graphml.runtime.programs.open_executor import open_executor
from tests import tiny_model
from tests.looped import looped
from tests.runtime.test_executor import sample, write
from tests.stories import STORIES

SCALING = "llama.rope.scaling"
YARN = {
    f"{SCALING}.type": "yarn",
    f"{SCALING}.factor": 4.0,
    f"{SCALING}.original_context_length": 32,
}
LONGER = {**YARN, f"{SCALING}.original_context_length": 4096}
LINEAR = {f"{SCALING}.factor": 2.0}
OPTIONS: dict[str, tuple[Mapping[str, Any], dict[str, Any], dict[str, Any]]] = {
    # keys of the file -> options -> keys of the file that gives the same
    "rope_freq_base": ({}, {"rope_freq_base": 500.0}, {"llama.rope.freq_base": 500.0}),
    "rope_freq_scale": ({}, {"rope_freq_scale": 0.25}, {f"{SCALING}.factor": 4.0}),
    "rope_scaling": (YARN, {"rope_scaling": "linear"}, {f"{SCALING}.type": "linear"}),
    "rope_scaling none": (LINEAR, {"rope_scaling": "none"}, {f"{SCALING}.type": "none"}),
    "yarn": ({}, {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 32}, YARN),
    "yarn_ext_factor": (YARN, {"yarn_ext_factor": 0.5}, {f"{SCALING}.yarn_ext_factor": 0.5}),
    "yarn_attn_factor": (YARN, {"yarn_attn_factor": 0.5}, {f"{SCALING}.attn_factor": 0.5}),
    "yarn_beta_slow": (YARN, {"yarn_beta_slow": 0.5}, {f"{SCALING}.yarn_beta_slow": 0.5}),
    "yarn_beta_fast": (LONGER, {"yarn_beta_fast": 4.0}, {f"{SCALING}.yarn_beta_fast": 4.0}),
    "yarn_orig_ctx": (YARN, {"yarn_orig_ctx": 16}, {f"{SCALING}.original_context_length": 16}),
    "override_kv": (
        {},
        {"override_kv": {".attention.layer_norm_rms_epsilon": 0.5}},
        {"llama.attention.layer_norm_rms_epsilon": 0.5},
    ),
}


def logits(path: Path, keys: Mapping[str, Any], **options: Any) -> np.ndarray:
    model = sample()
    file = write(path, replace(model, metadata={**model.metadata, **keys}))
    with contextlib.closing(open_executor(file, LoadOptions("reference", kv="f32", **options))) as executor:
        return graphml.Model(executor, file).session().eval([3, 1, 4, 1, 5, 9, 2, 6], all_logits=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_as_the_key_in_the_file(name: str, tmp_path: Path) -> None:
    keys, options, same = OPTIONS[name]
    found = logits(tmp_path / "a.gguf", keys, **options)
    assert np.array_equal(found, logits(tmp_path / "b.gguf", {**keys, **same}))
    assert not np.allclose(found, logits(tmp_path / "c.gguf", keys), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"override_kv": {"llama.rope.freq_bse": 1.0}},
            "override_kv: nothing reads the key 'llama.rope.freq_bse'. Did you mean",
        ),
        (
            {"override_kv": {"llama.block_count": "two"}},
            "key 'llama.block_count': wanted an integer, got string",
        ),
        (
            {"override_kv": {"llama.block_count": 2.0}},
            "key 'llama.block_count': wanted an integer, got f64 2.0",
        ),
        ({"override_kv": {".rope.freq_base": True}}, "wanted a number, got bool True"),
        (
            {"yarn_beta_fast": 4.0},
            "yarn_beta_fast: nothing reads the key 'llama.rope.scaling.yarn_beta",
        ),
    ],
    ids=str,
)
def test_what_nothing_reads_and_other_types_are_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    file = write(tmp_path / "m.gguf", sample())
    with pytest.raises(UsageError, match=re.escape(says)):
        open_executor(file, LoadOptions("reference", **options))


@looped("value", [None, [1], 1 << 63, float("inf"), b"x"], ids=str)
def test_values_that_no_file_has_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"override_kv\['x'\]: wanted a truth value, a number"):
        LoadOptions(override_kv={"x": value})


def test_what_the_tokenizer_reads_may_be_overridden(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    key = "tokenizer.ggml.add_bos_token"
    with graphml.load(path, "reference", override_kv={key: True}) as model:
        assert model.encode("hello")[0] == tiny_model.BEGIN
    with graphml.load(path, "reference") as model:
        assert model.encode("hello")[0] != tiny_model.BEGIN
    with graphml.load(path, "reference", override_kv={"tokenizer.chat_template": "own"}) as model:
        assert model.template.render([]) == "own"
    with pytest.raises(UsageError, match=r"nothing reads the key 'tokenizer.ggml.add_bos'. Did you mean"):
        graphml.load(path, "reference", override_kv={"tokenizer.ggml.add_bos": True})


def test_the_command_line_writes_them_as_llama_cpp_does() -> None:
    texts = ["a.b=int:-5", "c=float:0.5", "d=bool:true", "e=str:x=int:5", "c=float:1e6"]
    assert parse_overrides(texts) == {"a.b": -5, "c": 1e6, "d": True, "e": "x=int:5"}
    overrides = ["--override-kv", "llama.context_length=int:64", "--rope-freq-base", "500"]
    done = CliRunner().invoke(app, ["plan", str(STORIES), "--backend", "reference", *overrides])
    assert "one session of 64 tokens" in done.stdout
