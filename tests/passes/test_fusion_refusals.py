"""Fusions that are not made: near misses and their reasons, switches, what a backend refuses."""

from __future__ import annotations

import pytest

from graphml.errors import UsageError
from graphml.ir.dtype import F32
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.elementwise import mul, silu
from graphml.ir.ops.index import get_rows, set_rows
from graphml.ir.ops.linear import quantize
from graphml.ir.verify import verify
from graphml.passes.fusion import Fusion, fuse
from graphml.passes.fusion_log import Refused
from graphml.passes.switches import switched
from tests.looped import looped
from tests.passes.patterns import FUSED, FUSIONS


def row(g: Builder) -> Node:
    return g.weight("bias", F32, (1, 8))


REFUSALS = {
    "swiglu": (lambda g, x, w: g.mul(g.silu(x), w), "w has another shape than x"),
    "rms_norm_mul": (lambda g, x, w: g.rms_norm(x, w, 1e-5), "w is not one row as wide as x"),
    "dequant_mul_mat": (lambda g, x, w: g.mul_mat(g.tanh(w), x), "tanh is not a tensor of the file"),
    "mul_mat_bias": (lambda g, x, w: g.add(g.mul_mat(w, x), row(g)), "bias is not one row of weights"),
    "mul_mat_residual": (lambda g, x, w: g.add(g.mul_mat(w, x), row(g)), "bias has another shape"),
}


@looped("name", REFUSALS)
def test_near_misses_are_told(name: str) -> None:
    build, reason = REFUSALS[name]
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 8))
    w = g.weight("w", F32, (8, 8) if "mat" in name else (1, 8))
    _, counts = fuse(g.finish(y=build(g, x, w)), {FUSIONS[name].replace})
    assert name not in counts.counts
    assert any(reason in miss.reason for miss in counts.refused if miss.fusion == name)


def test_reasons_name_the_node_at_which_a_condition_failed() -> None:
    g = Builder(max_tokens=4)
    x, w = g.input("x", F32, (g.n_tokens, 8)), g.weight("w", F32, (1, 8))
    capped = g.scale(g.tanh(g.scale(x, 0.5, 1.0, name="shifted")), 2.0, name="capped")
    relu_capped = g.scale(g.silu(g.scale(x, 0.5), name="no_tanh"), 2.0, name="uncapped")
    _, log = fuse(g.finish(a=capped, b=g.rms_norm(relu_capped, w, 1e-5, "normed")), FUSED)
    assert not log.applied
    assert set(log.refused) == {
        Refused("softcap", "capped", "shifted adds an offset", "shifted"),
        Refused("softcap", "uncapped", "no_tanh is silu; wanted tanh", "no_tanh"),
        Refused("rms_norm_mul", "normed", "w is not one row as wide as uncapped", "w"),
    }


def test_experts_weighted_otherwise_are_refused() -> None:
    g = Builder(max_tokens=4)
    y, w = g.input("y", F32, (g.n_tokens, 3, 3)), g.input("w", F32, (g.n_tokens, 3))
    weighted = g.mul(y, g.reshape(w, 1, 3, name="spread"))
    wrong = g.reshape(g.sum_rows(g.permute(weighted, 0, 2, 1)), 3)
    _, log = fuse(g.finish(y=wrong), FUSED)
    assert [miss.at for miss in log.refused if miss.fusion == "combine_experts"] == ["spread"]


def test_the_longest_match_comes_first_and_what_the_backend_refuses_is_not_made() -> None:
    g = Builder(max_tokens=4)
    gate, up = g.input("gate", F32, (g.n_tokens, 32)), g.input("up", F32, (g.n_tokens, 32))
    graph = g.finish(y=g.call(quantize, g.mul(g.silu(gate), up), dtype="q8_1", name="y"))
    assert fuse(graph, FUSED)[1].counts == {"swiglu": 1, "swiglu_quantize": 1}
    _, log = fuse(graph, FUSED, refuses=lambda n: "too long" if n.op.name == "swiglu_quantize" else None)
    assert log.counts == {"swiglu": 1}
    assert log.refused == (Refused("swiglu_quantize", "y", "the backend refuses it: too long", "y"),)


def test_a_product_alone_is_no_near_miss_of_a_gate() -> None:
    g = Builder(max_tokens=4)
    x, bias = g.input("x", F32, (g.n_tokens, 8)), g.weight("b", F32, (8,))
    product = g.add(g.mul_mat(g.weight("w", F32, (8, 8)), x), bias, "with_bias")
    _, log = fuse(g.finish(y=g.mul(x, product, "gated")), FUSED)
    assert not log.refused  # a mul alone is no near miss of silu(gate) * up


@looped(
    ("switches", "off"),
    [
        ("", set()),
        ("all", set()),
        ("none", set(FUSIONS)),
        ("-swiglu", {"swiglu", "swiglu_quantize", "mul_mat_swiglu"}),
        ("-rms_norm_mul", {"rms_norm_mul", "rms_norm_mul_quantize", "add_rms_norm"}),
        ("-swiglu_quantize", {"swiglu_quantize"}),
        ("-mul_mat_bias", {"mul_mat_bias"}),
        ("all,-swiglu,+swiglu", set()),
        ("none,+swiglu", set(FUSIONS) - {"swiglu"}),
        ("none,+swiglu_quantize", set(FUSIONS) - {"swiglu_quantize", "swiglu"}),
        ("none,+mul_mat_residual", set(FUSIONS) - {"mul_mat_residual", "dequant_mul_mat"}),
        ("none,+qkv,-linear", set(FUSIONS)),
        ("-mul_mat_glu", {name for name in FUSIONS if name.startswith("mul_mat_") and "glu" in name}),
    ],
)
def test_switches(switches: str, off: set[str]) -> None:
    assert switched(switches) == set(FUSIONS) - off


@looped(
    ("switches", "wanted"),
    [
        ("-swiglo", r"no fusion is called 'swiglo'. Did you mean 'swiglu'.*\? Known: .*rms_norm_mul"),
        ("swiglu", r"wanted all, none, \+NAME or -NAME; got 'swiglu'"),
        ("-swiglu,none", "'none' comes first"),
        ("-", "no fusion is called ''"),
    ],
)
def test_wrong_switches_are_told(switches: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"^--fuse: {wanted}"):
        switched(switches, "--fuse")


def test_only_the_named_fusions_are_made() -> None:
    g = Builder(max_tokens=4)
    x, w = g.input("x", F32, (g.n_tokens, 8)), g.weight("w", F32, (8,))
    graph = g.finish(y=g.mul(g.silu(x), g.rms_norm(x, w, 1e-5)))
    assert fuse(graph, FUSED, switched("-swiglu"))[1].counts == {"rms_norm_mul": 1}
    assert fuse(graph, FUSED, switched("none"))[1].counts == {}


def test_a_product_that_is_stretched_over_what_is_added_is_no_residual() -> None:
    """x + w x with one row of weights: the kernel would read a row of one element as a whole one."""
    g = Builder(max_tokens=4)
    x, w = g.input("x", F32, (g.n_tokens, 8)), g.weight("w", F32, (1, 8))
    factors, a, b = g.input("f", F32, (g.n_tokens, 1)), g.weight("a", F32, (2, 8)), g.weight("b", F32, (1, 2))
    adapted = g.add(x, g.mul_mat(b, g.mul(g.mul_mat(a, x), factors)))
    for name, made in (("mul_mat_residual", g.add(x, g.mul_mat(w, x))), ("low_rank", adapted)):
        _, log = fuse(g.finish(y=made), {FUSIONS[name].replace})
        assert name not in log.counts
        assert name in {refused.fusion for refused in log.refused}


def test_one_value_twice_is_no_match_of_two() -> None:
    """r * r with r = relu(x), p + p with p a product, and one clamped value for both halves of a gate."""
    g = Builder(max_tokens=4)
    x, w = g.input("x", F32, (g.n_tokens, 8)), g.weight("w", F32, (8, 8))
    r, p, c = g.relu(x), g.mul_mat(w, x), g.clamp(x, -7.0, 7.0)
    gate = g.mul(g.gelu_quick(c), g.scale(c, 1.0, 1.0))
    graph, log = fuse(g.finish(a=g.mul(r, r), b=g.add(p, p), c=gate), FUSED)
    assert set(log.counts) == {"dequant_mul_mat", "geglu_quick"}  # of the clamped value and the one shifted
    assert verify(graph)


def test_a_read_of_a_state_is_not_moved_behind_its_change() -> None:
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 8))
    memory = g.state("memory", F32, (g.n_sequences, 8))
    before = g.silu(g.rows(memory, g.sequences))
    g.call(set_rows, memory, x, g.sequences, name="change")
    joined = Fusion(
        "gated_rows", find=lambda table, rows, up: mul(silu(get_rows(table, rows)), up), replace=swiglu_rows
    )
    graph = g.finish(y=g.mul(before, x))
    after, log = fuse(graph, {swiglu_rows}, known=[joined])
    assert after is graph
    (refused,) = log.refused
    assert refused.reason == "get_rows and change use one state, in this order"


swiglu_rows = fused_op(
    "swiglu_rows", lambda g, table, rows, up: g.mul(g.silu(g.rows(table, rows)), up), lambda: []
)
