"""Shapes with bounded symbols, and element types with their sizes."""

from __future__ import annotations

import graphml_quant
import numpy as np
import pytest

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F16, F32, I32, dtype
from graphml.ir.op import Type, integer, integers, number, text
from graphml.ir.shape import Symbol, bound, bounds, fixed, max_elements, resolve, show
from tests.looped import looped

T = Symbol("T", 512)


def test_bounds_and_sizes() -> None:
    assert bound(T) == 512
    assert bound(7) == 7
    assert bounds((T, 3, 4)) == (512, 3, 4)
    assert max_elements((T, 3)) == 1536
    assert max_elements(()) == 1
    assert fixed(9) == 9
    with pytest.raises(ShapeError, match="T<=512"):
        fixed(T)


def test_resolve() -> None:
    assert resolve((T, 3), {"T": 17, "S": 1}) == (17, 3)
    assert resolve((T,), {"T": 512}) == (512,)
    for dims, wanted in (({}, "no value for dimension T"), ({"T": 513}, "T is at most 512; got 513"),
                         ({"T": -1}, "got -1")):  # fmt: skip
        with pytest.raises(ShapeError, match=wanted):
            resolve((T, 3), dims)


def test_shapes_show_their_bounds() -> None:
    assert show((T, 576)) == "[T<=512, 576]"
    assert repr(Type(F16, (T, 2))) == "f16[T<=512, 2]"


def test_plain_dtypes_are_numpys() -> None:
    assert (F32.numpy, F16.numpy, I32.numpy) == (np.dtype("f4"), np.dtype("f2"), np.dtype("i4"))
    assert not F32.is_format
    assert F32.bytes_for(3) == 12
    assert dtype("f32") is F32


@looped("name", sorted(graphml_quant.formats()))
def test_every_format_is_a_dtype(name: str) -> None:
    kind, form = dtype(name), graphml_quant.by_name(name)
    assert (kind.block_elements, kind.block_bytes) == (form.block_elements, form.block_bytes)
    assert kind.bytes_for(3 * form.block_elements) == form.bytes_for(3 * form.block_elements)
    assert kind.is_format == (name not in ("f32", "f16"))


def test_a_part_of_a_block_has_no_size() -> None:
    with pytest.raises(GraphError, match="q8_0 comes in blocks of 32; got 33 elements"):
        dtype("q8_0").bytes_for(33)


def test_an_unknown_dtype_lists_the_known() -> None:
    with pytest.raises(GraphError, match=r"unknown dtype 'q9'; known: .*f32.*q8_0"):
        dtype("q9")


def test_typed_reads_of_attributes() -> None:
    attributes = {"n": 3, "x": 0.5, "yes": True, "name": "neox", "axes": (1, 0)}
    assert number(attributes, "n") == 3.0
    assert number(attributes, "x") == 0.5
    assert integer(attributes, "n") == 3
    assert text(attributes, "name") == "neox"
    assert integers(attributes, "axes") == (1, 0)
    for read, name in ((number, "name"), (integer, "x"), (integer, "yes"), (text, "n"), (integers, "name"),
                       (integers, "n")):  # fmt: skip
        with pytest.raises(GraphError, match=f"attribute '{name}': wanted"):
            read(attributes, name)
