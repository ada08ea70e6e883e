"""Types that ops of attention refuse: factors and sinks of other dtypes, other numbers of rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from graphml.errors import GraphmlError
from graphml.ir.builder import complete
from graphml.ir.dtype import F32, I32, DType, dtype
from graphml.ir.op import Attributes, Op, Type
from graphml.ir.ops import attention, compressed, sparse, text_rows

F16 = dtype("f16")


def refused(op: Op, text: str, attributes: Attributes, inputs: Sequence[Type]) -> None:
    with pytest.raises(GraphmlError, match=text):
        op.infer(inputs, complete(op, attributes))


@pytest.mark.parametrize(
    ("op", "place", "role"),
    [
        (compressed.compressed_attention, 7, "sinks"),
        (compressed.select_compressed, 5, "weights"),
        (compressed.compress_rows, 2, "bias"),
        (sparse.select_blocks, 5, "weights"),
        (sparse.selected_attention, 7, "sinks"),
    ],
)
@pytest.mark.parametrize("other", [F16, I32])
def test_factors_have_full_precision(op: Op, place: int, role: str, other: DType) -> None:
    assert op.samples is not None
    sample = next(
        sample
        for sample in op.samples()
        if sample.inputs[place : place + 1] and sample.inputs[place].dtype is F32
    )
    inputs = [*sample.inputs]
    inputs[place] = Type(other, inputs[place].shape)
    refused(op, f"wanted {role} of f32; got", sample.attributes, inputs)


def test_sinks_of_plain_attention_have_full_precision() -> None:
    q, *others = attention.attention.samples()[0].inputs[:6]
    inputs = [q, *others, Type(F16, q.shape[1:2])]
    refused(attention.attention, "wanted sinks of f32; got f16", {"scale": 1.0}, inputs)


@pytest.mark.parametrize("overlaps", [-1, 2, 3])
def test_groups_overlap_once_or_not(overlaps: int) -> None:
    sample = compressed.compress_rows.samples()[0]
    attributes = {**sample.attributes, "overlaps": overlaps}
    refused(compressed.compress_rows, f"wanted overlaps of 0 or 1; got {overlaps}", attributes, sample.inputs)


def test_each_token_has_a_choice_of_groups() -> None:
    sample = compressed.compressed_attention.samples()[1]
    chosen = sample.inputs[8]
    inputs = [*sample.inputs[:8], Type(I32, (2, *chosen.shape[1:]))]
    refused(compressed.compressed_attention, "wanted selected groups .T, n.", sample.attributes, inputs)


def test_a_reach_below_0_is_named() -> None:
    sample = text_rows.neighbours.samples()[0]
    refused(text_rows.neighbours, "wanted a reach of at least 0; got -2", {"reach": -2}, sample.inputs)
