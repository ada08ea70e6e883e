"""Tensors of a file as a user reads them: by name, by NumPy, by DLPack, by the names of other libraries."""

from __future__ import annotations

from typing import Any

import graphml_quant
import numpy as np
import pytest

import graphml
from graphml.errors import NameNotFoundError
from graphml.ir.dtype import dtype
from graphml.ir.language import Builder
from graphml.weights import tensor_table
from graphml.weights.deferred import DeferredTensor
from graphml.weights.tensor import Tensor
from graphml.weights.tensor_table import TensorTable

NUMBERS = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)


def tensor_of(form: str, kind: type[Tensor] = Tensor) -> Tensor:
    if form == "i32":
        data = np.arange(256, dtype="<i4").view(np.uint8)
    else:
        data = graphml_quant.quantize(graphml_quant.by_name(form), NUMBERS).reshape(-1).view(np.uint8)
    if kind is DeferredTensor:
        return DeferredTensor.of("w", form, (4, 64), lambda: data)
    return Tensor("w", form, (4, 64), data)


@pytest.mark.parametrize("kind", [Tensor, DeferredTensor])
@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "q4_0", "q8_0", "i32"])
def test_a_tensor_is_the_array_of_its_numbers(form: str, kind: type[Tensor]) -> None:
    tensor: Any = tensor_of(form, kind)
    wanted = tensor.numpy()
    for array in (
        np.asarray(tensor), np.array(tensor), np.from_dlpack(tensor), np.asarray(tensor, wanted.dtype),
        np.asarray(tensor, np.float64), tensor.dequantize(), np.add(tensor, 0),
    ):  # fmt: skip
        assert array.shape == (4, 64)
        np.testing.assert_array_equal(array, wanted)
    assert np.asarray(tensor).dtype == (np.int32 if form == "i32" else np.float32)
    assert np.asarray(tensor, np.float16).dtype == np.float16
    assert np.array(tensor).flags.writeable
    assert repr(tensor) == f"Tensor('w', {form} [4, 64], {tensor.n_bytes:,} bytes)"
    assert (tensor.nbytes, tensor.quantization) == (tensor.n_bytes, form)


def test_an_array_that_is_no_copy_is_a_view_or_refused() -> None:
    whole = tensor_of("i32")
    assert np.shares_memory(np.asarray(whole, copy=False), whole.data)
    assert not np.shares_memory(np.array(whole), whole.data)
    for tensor, kind in ((tensor_of("q4_0"), None), (whole, np.float32)):
        with pytest.raises(ValueError, match="wanted copy=True or None"):
            np.asarray(tensor, kind, copy=False)


@pytest.mark.parametrize(("attribute", "said"), [
    ("mean", r"has no attribute 'mean'. Use numpy\(\)"), ("size", "Use n_elements, or shape"),
    ("shap", "Did you mean 'shape'"), ("torch", "from_dlpack"),
])  # fmt: skip
@pytest.mark.parametrize("kind", [Tensor, DeferredTensor])
def test_what_a_tensor_has_not_is_told(kind: type[Tensor], attribute: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(tensor_of("q4_0", kind), attribute)
    with pytest.raises(TypeError, match=r"Use numpy\(\)\[...\]"):
        tensor_of("q4_0", kind)[0]  # type: ignore[index]


def test_tensors_by_name() -> None:
    table = TensorTable({"a.weight": tensor_of("q4_0"), "b.weight": tensor_of("f32")})
    assert repr(table) == "2 tensors {'a.weight': q4_0 [4, 64], 'b.weight': f32 [4, 64]}"
    assert [*table] == ["a.weight", "b.weight"]
    assert (len(table), "a.weight" in table, "c" in table, table.get("c")) == (2, True, False, None)
    assert [*({"c": table["a.weight"]} | table)] == ["c", "a.weight", "b.weight"]
    for name, said in (
        ("a.wieght", "Did you mean 'a.weight'"),
        ("zz", "named as 'a.weight', 'b.weight'"),
        (3, "3"),
    ):
        with pytest.raises(NameNotFoundError, match=said) as error:
            table[name]  # type: ignore[index]
        assert isinstance(error.value, KeyError)
        assert str(error.value).startswith("no tensor is called ")


def test_a_tensor_that_a_model_may_lack_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*args: object) -> str:
        raise AssertionError("near names are looked for where none is shown")

    monkeypatch.setattr(tensor_table, "did_you_mean", searched)
    table = TensorTable({"a.weight": tensor_of("f32")})
    assert table.get("a.bias") is None
    assert "a.bias" not in table
    with graphml.load("stories260k", backend="reference") as model:
        model.generate("a", max_tokens=1)


def test_a_model_s_tensors_are_those_of_its_file() -> None:
    with graphml.load("stories260k", backend="reference") as model:
        assert model.tensors is model.executor.file.tensors is model.weights
        weight = model.tensors["blk.0.attn_q.weight"]
        np.testing.assert_array_equal(np.asarray(weight), weight.numpy())
    with pytest.raises(graphml.UsageError, match="the model was closed"):
        _ = model.tensors


def test_a_tensor_of_a_file_is_a_graph_s_weight() -> None:
    for name in ("q4_0", "f32"):
        g = Builder(max_tokens=1, max_outputs=1)
        x = g.input("x", dtype("f32"), (1, 64))
        graph = g.finish(y=g.mul_mat(g.weight("w", dtype(name), (4, 64)), x))
        compiled = graphml.compile(graph, "reference", weights={"w": tensor_of(name)})
        found = compiled(x=NUMBERS[:1])["y"]
        np.testing.assert_allclose(found, NUMBERS[:1] @ tensor_of(name).numpy().T, rtol=0.0, atol=0.2)
