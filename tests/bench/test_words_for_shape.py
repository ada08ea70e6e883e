"""A model of random weights with another file's vocabulary: the weights stay, words come in and out."""

from __future__ import annotations

import lzma
import runpy
from pathlib import Path

import pytest

import graphml
from graphml.bench.made_models import bench_model
from graphml.bench.shapes import Shape
from graphml.weights import open_model
from tests.text.vocabularies import DATA

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "words_for_shape.py"
SHAPE = Shape("words-test", "llama", 32000, 256, 2, 4, 1, 256)


def test_a_shape_with_a_vocabulary_has_its_weights_and_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words, out = tmp_path / "words.gguf", tmp_path / "out.gguf"
    words.write_bytes(lzma.decompress((DATA / "llama-spm.gguf.xz").read_bytes()))
    made = bench_model(SHAPE, "Q4_0")
    runpy.run_path(str(SCRIPT))["with_words"](made, words, out)
    with open_model(made) as plain, open_model(out) as model:
        assert plain.tensors.keys() == model.tensors.keys()
        for name, tensor in plain.tensors.items():
            assert tensor.data.tobytes() == model.tensors[name].data.tobytes()
    with graphml.load(out, "cpu", threads=1) as opened:
        assert opened.tokenizer is not None
        assert opened.tokenizer.decode(opened.encode("many words")).endswith("many words")
        assert "user: Hello" in opened.templates["default"].render([{"role": "user", "content": "Hello"}])
