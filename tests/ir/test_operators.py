"""Python's operators and NumPy's functions on nodes: the error says what to write, and in which line."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from tests.looped import looped

CASES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: x + x, r"operator \+: use g\.add\(a, b\), or for a number g\.scale"),
    (lambda x: 2.0 + x, r"operator \+: use g\.add"),
    (lambda x: x - 1.0, r"operator -: use g\.sub"),
    (lambda x: x * x, r"operator \*: use g\.mul\("),
    (lambda x: 0.5 * x, r"operator \*: use g\.mul\(.* g\.scale\("),
    (lambda x: x / 2, r"operator /: use g\.div"),
    (lambda x: x @ x, r"operator @: use g\.mul_mat"),
    (lambda x: x**2, r"operator \*\*: use g\.sqr"),
    (lambda x: x // 2, r"operator //: there is no op"),
    (lambda x: -x, r"operator -: use g\.neg"),
    (abs, r"abs\(\): use g\.absolute"),
    (lambda x: x[0], r"operator \[\]: use g\.columns"),
    (lambda x: x[..., :4], r"operator \[\]: use g\.columns"),
    (lambda x: operator.setitem(x, 0, x), r"operator \[\] =: nodes do not change"),
    (len, r"len\(\): a\.shape has"),
    (list, r"elements: use g\.columns"),
    (lambda x: [*x], r"elements: use g\.columns"),
    (lambda x: 1.0 in x, r"operator in: what is known while the graph is built"),
    (lambda x: x > 0, r"order: use g\.less\(a, b\), .*; what is known while the graph is built"),
    (lambda x: x & x, r"operator &: use g\.mul"),
    (lambda x: x | x, r"operator \|: use g\.maximum"),
    (float, r"number: what is known while the graph is built"),
    (int, r"number: what is known"),
    (lambda x: [1, 2][x], r"number: what is known"),
    (lambda x: x(x), r"call: use layer\.linear"),
    (np.asarray, r"NumPy array: the methods of g"),
    (np.exp, r"NumPy functions: the methods of g"),
    (lambda x: np.ones(4, np.float32) * x, r"NumPy functions: the methods of g"),
    (lambda x: np.float32(2) * x, r"NumPy functions|operator \*"),
    (lambda x: np.concatenate([x, x]), r"NumPy functions: the methods of g"),
]


@looped(("use", "text"), CASES, ids=[text.partition(":")[0] for _, text in CASES])
def test_an_operator_says_what_to_write_instead(use: Callable[[Any], Any], text: str) -> None:
    x = Builder().input("x", F32, (4,))
    with pytest.raises(
        GraphError, match=rf"^nodes have no {text}.*got %x: f32\[4\].*\(at .*\.py:\d+\)$"
    ) as error:
        use(x)
    assert __file__ in str(error.value) or use in (abs, len, list, float, int, np.asarray, np.exp)


def test_what_other_libraries_call_it_is_known() -> None:
    g = Builder()
    x: Any = g.input("x", F32, (4,))
    with pytest.raises(AttributeError, match=r"a node has no 'transpose': use g\.permute"):
        x.transpose(0, 1)
    with pytest.raises(AttributeError, match=r"a node has no 'backward': what is computed"):
        x.backward()
    loose: Any = g
    with pytest.raises(AttributeError, match=r"g has no 'matmul': did you mean g\.mul_mat\?"):
        loose.matmul(x, x)
    with pytest.raises(AttributeError, match=r"g has no 'rms_nrom': did you mean g\.rms_norm\?"):
        loose.rms_nrom(x)
    with pytest.raises(AttributeError, match=r"g has no 'zzz'$"):
        loose.zzz(x)
    assert not hasattr(g, "matmul")


def test_a_node_is_true_and_equal_to_itself_alone() -> None:
    """`if layer.get("x"):` asks for a tensor; passes keep nodes in sets and dictionaries."""
    g = Builder()
    x, y = g.input("x", F32, (4,)), g.input("y", F32, (4,))
    assert x
    assert x == x
    assert x != y
    assert x != replace(x)
    assert x in [y, x]
    assert {x: 1}[x] == 1
    assert copy.copy(x).name == "x"
    assert getattr(x, "transposed", None) is None
