"""Each op in PyTorch against its meaning in NumPy, by the op's own samples; and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graphml.ir.op import Array, Attributes, Op, Sample
from graphml.ir.ops import table as in_numpy
from graphml.ir.ops.leaf import LEAVES
from graphml.torch_module.graph_module import default_dtype
from graphml.torch_module.ops import table

OPS = {name: op for name, op in sorted(in_numpy().items()) if op not in LEAVES}
SAMPLES = [
    pytest.param(op, sample, id=f"{name}-{i}")
    for name, op in OPS.items()
    for i, sample in enumerate(op.samples())
]
DISCRETE = {
    "column_numbers", "equal", "less", "less_equal", "ngram_rows", "quantize", "sample_row", "sample_token",
    "select_blocks", "select_compressed", "top_k", "cast",
}  # fmt: skip
"""Without a gradient."""


def operands(sample: Sample, n: int) -> list[Array]:
    """Arrays of a sample with n rows."""
    generator, arrays = np.random.default_rng(7), []
    for i, kind in enumerate(sample.inputs):
        shape = tuple(size if isinstance(size, int) else n for size in kind.shape)
        fill = sample.fill.get(i)
        usual = generator.standard_normal(shape).astype(np.float32)
        arrays.append(usual if fill is None else fill(generator, shape))
    return arrays


def attributes_of(op: Op, sample: Sample) -> Attributes:
    stated = {name: value for name, value in op.attributes.items() if value is not None}
    return {**stated, **sample.attributes}


def as_tensors(arrays: list[Array]) -> list[torch.Tensor]:
    return [torch.from_numpy(x.astype(np.float64) if x.dtype == np.float32 else x.copy()) for x in arrays]


def assert_same(ours: torch.Tensor, wanted: Array) -> None:
    got = ours.detach().numpy()
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "iu":
        assert np.array_equal(got, wanted)
        return
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    with np.errstate(over="ignore"):
        assert np.array_equal(got.astype(np.float32)[~finite], wanted[~finite], equal_nan=True)
    size = float((wanted[finite].astype(np.float64) ** 2).sum())
    assert float(((got[finite] - wanted[finite]) ** 2).sum()) <= 1e-12 * max(size, 1e-300)


def test_every_op_has_a_meaning_in_torch() -> None:
    assert set(table()) == set(OPS)


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_it_means_the_same(op: Op, sample: Sample) -> None:
    assert op.reference is not None
    for n in (1, 7, 33):
        arrays, attributes = operands(sample, n), attributes_of(op, sample)
        tensors = as_tensors(arrays)
        before = [x.clone() for x in tensors]
        with default_dtype(torch.float64):
            ours = table()[op.name](tensors, attributes)
        assert all(torch.equal(x, y) or x.isnan().any() for x, y in zip(tensors, before, strict=True))
        wanted = op.reference(arrays, attributes)
        if op.writes is None:
            assert_same(ours, wanted)
        else:
            assert_same(ours[0], wanted)
            assert_same(ours[1], arrays[op.writes])


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_its_gradients_are_difference_quotients(op: Op, sample: Sample) -> None:
    arrays, attributes = operands(sample, 3), attributes_of(op, sample)
    generator = np.random.default_rng(3)
    for i, x in enumerate(arrays):
        if x.dtype == np.float32 and op.name not in DISCRETE:
            # Above 0 where others have no root or logarithm, and no two alike: ties have no gradient.
            x = np.nan_to_num(x, nan=0.25, posinf=2.0, neginf=-2.0)
            x = np.clip(np.abs(x), 0.5, 9) if op.name in ("sqrt", "log") else x
            arrays[i] = x + generator.uniform(0, 1e-2, x.shape).astype(np.float32)
    if op.name == "top_k_groups":  # the others are minus infinity
        attributes = {**attributes, "n_group_used": attributes["n_group"]}
    tensors = as_tensors(arrays)
    floating = [x.requires_grad_() for x in tensors if x.is_floating_point()]
    if not floating or op.name in ("floor", "round"):  # whose steps have no slope
        return

    def results(*values: torch.Tensor) -> Any:
        left = iter(values)
        ours = table()[op.name]([next(left) if x.is_floating_point() else x for x in tensors], attributes)
        several = ours if isinstance(ours, tuple) else (ours,)
        return tuple(x for x in several if x.requires_grad)

    with default_dtype(torch.float64):
        if not results(*floating):
            assert op.name in DISCRETE | {"compress_rows"}  # of which a sample has no group at its end
            return
        close = {"eps": 1e-6, "atol": 1e-4, "rtol": 1e-3}
        assert torch.autograd.gradcheck(results, tuple(floating), **close, fast_mode=True)
