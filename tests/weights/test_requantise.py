"""Weights in another representation than the file's: what changes, what stays and why, bit by bit."""

from __future__ import annotations

from pathlib import Path

import graphml_quant
import numpy as np
import pytest
from graphml_models._samples import transformer

import graphml
from graphml.errors import UsageError, WeightsError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.weights import open_model, requantise
from graphml.weights.requantise import QUANTS, choose, memory_of, requantised
from graphml.weights.tensor import Tensor
from tests import golden
from tests.golden import Floats
from tests.looped import looped
from tests.one_text import OneText
from tests.sample_models import write_model

MODEL = transformer("llama", "experts", n_expert=3, biases=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("requantise") / "f32.gguf", "llama", MODEL)


def tensor(name: str, dtype: str, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, np.zeros(0, np.uint8))


@looped(
    ("name", "dtype", "shape", "quant", "wanted"),
    [
        ("blk.0.attn_q.weight", "f32", (64, 96), "q8", "q8_0"),
        ("blk.0.attn_q.weight", "q4_k", (64, 256), "q4", "q4_0"),
        ("token_embd.weight", "bf16", (64, 32), "q4", "q4_0"),
        ("blk.0.ffn_up_exps.weight", "f16", (4, 64, 32), "q8", "q8_0"),
        ("blk.0.attn_norm.weight", "f16", (64,), "fp32", "f32"),
        ("blk.0.attn_q.weight", "q8_0", (64, 96), "q8", "is q8_0 already"),
        ("blk.0.attn_norm.weight", "f32", (64,), "fp32", "is f32 already"),
        ("blk.0.attn_norm.weight", "f32", (64,), "q8", "is a vector"),
        ("blk.0.attn_q_norm.weight", "f32", (8, 64), "q8", "is no factor of a large product"),
        ("blk.0.ffn_gate_inp.weight", "f32", (8, 64), "q4", "is no factor of a large product"),
        ("blk.0.attn_q.bias", "f32", (8, 64), "q4", "is no factor of a large product"),
        ("blk.0.attn_q.weight", "f16", (64, 80), "q8", "has rows of 80, which are no whole blocks of 32"),
        ("table.weight", "i32", (4, 32), "fp32", "holds i32"),
    ],
)
def test_what_becomes_of_a_tensor(
    name: str, dtype: str, shape: tuple[int, ...], quant: str, wanted: str
) -> None:
    choice = choose(tensor(name, dtype, *shape), quant)
    assert wanted == (choice.dtype if choice.reason is None else choice.reason)
    assert choice.reason is None or choice.dtype == dtype


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_tensor_is_what_its_format_makes_of_it(
    path: Path, quant: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requantise, "_CHUNK_ELEMENTS", 1000)  # so that tensors are cut, rows not
    seen: list[tuple[str, int, int]] = []
    with open_model(path) as plain:
        before = {name: one.numpy() for name, one in plain.tensors.items()}
    with requantised(
        open_model(path), quant, threads, lambda what, done, total: seen.append((what, done, total))
    ) as file:
        changed = [name for name, one in file.tensors.items() if not one.mapped]
        for name, one in file.tensors.items():
            assert one.shape == before[name].shape
            format = graphml_quant.by_name(one.dtype)
            wanted = graphml_quant.quantize(format, before[name]).reshape(-1)
            np.testing.assert_array_equal(one.data, wanted)
            assert (one.dtype == QUANTS[quant]) == (quant == "fp32" or not one.mapped)
            assert not one.data.flags.writeable
        assert len(changed) == (0 if quant == "fp32" else 16)
        copied = sum(file.tensors[name].n_bytes for name in changed)
        assert memory_of(file.tensors) == (file.n_weight_bytes - copied, copied)
        with open_model(path) as plain:
            assert memory_of(plain.tensors, quant) == memory_of(file.tensors)
        assert seen[0] == ("converting", 0, copied)
        assert seen[-1] == ("converting", copied, copied)


def logits(path: Path, quant: str | None) -> Floats:
    executor = open_executor(path, LoadOptions("cpu", 2, kv="f32", n_batch=8, quant=quant))
    found = OneText(executor, 32).step(np.arange(8))
    executor.close()
    return found


def test_a_model_converted_here_is_one_that_was_quantised_before(path: Path, tmp_path: Path) -> None:
    plain = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in MODEL.tensors.items()}
    with open_model(path) as file:
        keys = {key: file.metadata[key] for key in MODEL.metadata}
    metadata = {
        key: ("FLOAT32" if isinstance(value, float) else "UINT32", value) for key, value in keys.items()
    }
    rounded = {}
    for name, array in plain.items():
        choice = choose(tensor(name, "f32", *array.shape), "q8")
        q8_0 = graphml_quant.by_name("q8_0")
        exact = graphml_quant.dequantize(q8_0, graphml_quant.quantize(q8_0, array), array.shape) if (
            choice.reason is None
        ) else array  # fmt: skip
        rounded[name] = exact
    # Float32 weights that are whole multiples of a block's scale: quantised once more they are the same.
    again = golden.write_gguf(tmp_path / "rounded.gguf", "llama", metadata, rounded)
    np.testing.assert_array_equal(logits(path, "q8"), logits(again, "q8"))
    exact = logits(again, None)
    # Activations are eight bits wide too.
    assert 0 < golden.nmse(logits(path, "q8"), exact) < 1e-3
    assert golden.nmse(logits(path, None), exact) > 0


def test_fp32_is_the_exact_reference_of_a_quantised_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "q4_1.gguf", "llama", MODEL, "q4_1")
    with requantised(open_model(path), "fp32", 2) as file:
        assert {one.dtype for one in file.tensors.values()} == {"f32"}
        with open_model(path) as plain:
            for name, one in file.tensors.items():
                np.testing.assert_array_equal(one.numpy(), plain.tensors[name].numpy())
    with graphml.load(path, "cpu", 2, quant="fp32", n_batch=8) as model:
        compiled = model.executor.compiled(8, 8)
        assert not [node for node in compiled.graph.nodes if node.op.name == "quantize"]


def test_what_cannot_be_asked_for_is_an_error_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quant: wanted one of fp32, q8, q4; got 'q5'"):
        graphml.load(tmp_path / "nothing.gguf", quant="q5")


def test_a_weight_that_is_no_number_is_named(path: Path, tmp_path: Path) -> None:
    tensors = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in MODEL.tensors.items()}
    tensors["blk.1.attn_k.weight"][3, 5] = np.nan
    bad = golden.write_gguf(tmp_path / "nan.gguf", "llama", {}, tensors)
    file = open_model(bad)
    with pytest.raises(WeightsError, match=r"nan.gguf: blk.1.attn_k.weight: q8_0: the value at .* is nan"):
        requantised(file, "q8", 2)
    file.close()


def test_the_factor_of_nvfp4_becomes_part_of_the_numbers(path: Path) -> None:
    """Of other formats a product may not read it: left beside them, it would be lost silently."""
    rng = np.random.default_rng(9)
    blocks = rng.integers(0, 0x70, (6, 36)).astype(np.uint8).reshape(-1)
    held = {
        "a.weight": Tensor("a.weight", "nvfp4", (6, 64), blocks),
        "a.scale": Tensor("a.scale", "f32", (1,), np.float32([0.3]).view(np.uint8)),
        "b_exps.weight": Tensor("b_exps.weight", "nvfp4", (2, 3, 64), blocks),
        "b_exps.scale": Tensor("b_exps.scale", "f32", (2,), np.float32([0.5, 7.0]).view(np.uint8)),
        "c.weight": Tensor("c.weight", "q8_0", (1, 32), np.zeros(34, np.uint8)),
        "c.scale": Tensor("c.scale", "f32", (1,), np.float32([0.3]).view(np.uint8)),
    }
    file = open_model(path)
    changed = requantised(file.with_tensors(held), "fp32").tensors
    assert sorted(changed) == ["a.weight", "b_exps.weight", "c.scale", "c.weight"]
    plain = held["a.weight"].numpy()
    assert np.array_equal(changed["a.weight"].numpy(), plain * np.float32(0.3))
    by_expert = np.repeat(np.float32([0.5, 7.0]), 3)[:, None]
    assert np.array_equal(changed["b_exps.weight"].numpy().reshape(6, 64), plain * by_expert)
    shared = {**held, "next.a.scale": held["a.scale"]}  # of a layer that has another's matrix
    changed = requantised(file.with_tensors(shared), "fp32").tensors
    assert sorted(set(shared) - set(changed)) == ["b_exps.scale"]
    assert [changed[f"{name}.weight"].dtype for name in ("a", "b_exps")] == ["nvfp4", "f32"]
    longer = {**held, "a.scale": Tensor("a.scale", "f32", (2,), np.float32([0.3, 0.4]).view(np.uint8))}
    with pytest.raises(WeightsError, match=r"tensor 'a\.scale': wanted 1 number or 6; got 2"):
        requantised(file.with_tensors(longer), "fp32")
    file.close()
