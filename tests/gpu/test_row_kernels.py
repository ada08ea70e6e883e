"""Kernels of GPU backends that work at rows: flaws stay where they belong, odd sizes, caches."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_gpu.lowering import sample_token as lowering
from graphml_gpu.lowering import top_k as top_k_lowering
from graphml_quant import by_name, dequantize

from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Op
from graphml.ir.ops.index import set_rows, top_k, top_k_groups
from graphml.ir.ops.norm import l2_norm, layer_norm, rms_norm
from graphml.ir.ops.position import rope_table
from graphml.ir.ops.reduce import cumsum, max_rows, min_rows, softmax, sum_rows
from graphml.ir.ops.sampling import ANY, SETTINGS, sample_row, sample_token
from graphml.ir.shape import Symbol
from graphml.passes.fusions.add_norm import add_rms_norm
from graphml.passes.fusions.layer_norm import layer_norm_mul
from graphml.passes.fusions.routing import route_experts
from tests.gpu.on_devices import CARD, DEVICES, REAL, nmse, run_both

T = Symbol("T", 9)
BLOCKS = [kind for kind in CACHE_DTYPES if dtype(kind).block_elements > 1]
on_every_device = pytest.mark.parametrize("device", DEVICES)


def flawed(n: int) -> Array:
    """Rows of ordinary numbers, of zeros, with NaN, infinities of either sign, all equal, large and small."""
    x = np.random.default_rng(n).standard_normal((9, n), np.float32)
    x[1] = 0.0
    x[1, 0] = -0.0
    x[2, n // 2] = np.nan
    x[3, n // 3] = np.inf
    x[4, n - 1] = -np.inf
    x[5] = -np.inf
    x[6] = 3.5
    x[7] *= 1e-12
    x[8, :: max(n // 3, 1)] = -0.0
    return x


ROW_OPS = [rms_norm, layer_norm, l2_norm, softmax, sum_rows, max_rows, min_rows, cumsum]


@on_every_device
@pytest.mark.parametrize("n", [1, 3, 257])
@pytest.mark.parametrize("op", ROW_OPS, ids=lambda op: op.name)
def test_flaws_of_a_row_stay_in_it(op: Op, n: int, device: str) -> None:
    g = Builder()
    graph = g.finish(y=g.call(op, g.input("x", F32, (T, n))))
    made, wanted = run_both(graph, {"x": flawed(n)}, device, T=9)
    for row, want in zip(made["y"], wanted["y"], strict=True):
        assert nmse(row, want) <= 1e-10


@pytest.mark.parametrize(("n", "bias"), [(4, False), (44, True), (1036, True), (2560, False), (8196, False)])
def test_rows_are_normed_in_registers_where_they_fit(n: int, bias: bool) -> None:
    """A row of one quad, of fewer than subgroups have lanes, of an odd number for each, and one too long."""
    g = Builder()
    x, y = g.input("x", F32, (T, n)), g.input("y", F32, (T, n))
    more = [g.weight(name, F32, (n,)) for name in ("weight", "bias")]
    total, normed = g.results(g.call(add_rms_norm, x, y, more[0]))
    made_by = {
        "weighted": g.call(layer_norm_mul, x, *more[: 1 + bias], bias=bias),
        "short": g.call(l2_norm, y),
    }
    random = np.random.default_rng(n)
    values = {"x": flawed(n)[[0, 2]] + 1, "y": random.standard_normal((2, n), np.float32)}
    values |= {node.name: random.standard_normal(n, np.float32) for node in more[: 1 + bias]}
    made, wanted = run_both(g.finish(total=total, normed=normed, **made_by), values, CARD, T=2)
    for name, value in wanted.items():
        assert nmse(made[name], value) <= 1e-10, name


@on_every_device
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 7), (257, 5)])
def test_the_largest_are_chosen_as_in_numpy(n: int, k: int, device: str) -> None:
    """Equals in their order, both zeros alike, NaN behind minus infinity."""
    g = Builder()
    graph = g.finish(y=g.call(top_k, g.input("x", F32, (T, n)), k=k))
    made, wanted = run_both(graph, {"x": flawed(n)}, device, T=9)
    np.testing.assert_array_equal(made["y"], wanted["y"])


@pytest.mark.parametrize(("k", "device"), [(k, d) for d in REAL for k in (1, 7)] + [(1, "python")])
def test_the_largest_of_long_rows_are_chosen_by_columns(
    k: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_k_lowering, "_COLUMNS", 64)
    monkeypatch.setattr(top_k_lowering, "_LONG", 256)
    n = 260  # the last columns hold one less than the others
    g = Builder()
    graph = g.finish(y=g.call(top_k, g.input("x", F32, (T, n)), k=k))
    x = flawed(n)
    x[0, [3, 70, 259]] = 9.0
    x[7, 256:] = [5.0, 7.0, np.inf, 5.0]
    x[8] = np.arange(n) % 64 < k  # the top k are in as many columns as there are wanted
    made, wanted = run_both(graph, {"x": x}, device, T=9)
    np.testing.assert_array_equal(made["y"], wanted["y"])


def of_row(n: int) -> Graph:
    """A graph that samples from rows of n."""
    g = Builder()
    nodes = [
        g.input(name, F32, (T, m)) for name, m in (("row", n), ("top_logits", 1), ("settings", len(SETTINGS)))
    ]
    return g.finish(y=g.call(sample_row, *nodes))


def settings_of(lowest: float, number: float) -> Array:
    """Those of nine rows, all sampled from the whole of them."""
    return np.tile(np.float32([0.8, 0.0, 1.0, lowest, number]), (9, 1))


@on_every_device
def test_tokens_are_sampled_as_in_numpy(device: str) -> None:
    random, sample = np.random.default_rng(2), sample_token.samples()[1]
    g = Builder()
    nodes = [g.input(f"x{i}", kind.dtype, (T, *kind.shape[1:])) for i, kind in enumerate(sample.inputs)]
    graph = g.finish(y=g.call(sample_token, *nodes))
    for _ in range(1 if device not in REAL else 20):
        values = {f"x{i}": sample.fill[i](random, (9, *node.shape[1:])) for i, node in enumerate(nodes)}
        made, wanted = run_both(graph, values, device, T=9)
        np.testing.assert_array_equal(made["y"], wanted["y"])


@pytest.mark.parametrize("device", ["python", *REAL])
@pytest.mark.parametrize(("n", "block"), [(1, 4096), (512, 4096), (257, 64)])
@pytest.mark.parametrize(("lowest", "number"), [(ANY, 0.0), (ANY, 0.6), (-0.5, 0.999)])
def test_rows_are_sampled_from_as_in_numpy(
    n: int, block: int, lowest: float, number: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows far from zero, of equals, with a block that holds no number; of flaws what comes of them."""
    monkeypatch.setattr(lowering, "_BLOCK", block)
    x = flawed(n)
    x[8] = 200.0
    x[7, 1:] = -300.0
    x[7, :64] = -np.inf if n > 64 else -300.0
    largest = np.where(np.isnan(x), -np.inf, x).max(axis=1, keepdims=True)
    made, wanted = run_both(
        of_row(n), {"row": x, "top_logits": largest, "settings": settings_of(lowest, number)}, device, T=9
    )
    np.testing.assert_array_equal(made["y"][:, 1], wanted["y"][:, 1])
    for i in (0, 2, 3):
        assert nmse(made["y"][:, i], wanted["y"][:, i]) <= 1e-12


@pytest.mark.parametrize("device", REAL)
def test_shares_of_long_rows_are_exact_to_a_millionth(device: str) -> None:
    """Less than what the sampler leaves between a number and an edge; the last block is not full."""
    random, n = np.random.default_rng(1), 70_001
    x = random.standard_normal((9, n), np.float32) * random.uniform(0, 6, (9, 1)).astype(np.float32) + 20
    given, graph = {"row": x, "top_logits": x.max(axis=1, keepdims=True)}, of_row(n)
    for number in (0.01, 0.3, 0.75, 0.999):
        made, wanted = run_both(graph, given | {"settings": settings_of(-9.0, number)}, device, T=9)
        same = made["y"][:, 1] == wanted["y"][:, 1]
        assert same.sum() >= 8
        assert np.abs(made["y"] - wanted["y"])[same, 2:].max() <= 1e-6


@on_every_device
def test_groups_are_chosen_as_in_numpy(device: str) -> None:
    g = Builder()
    graph = g.finish(y=g.call(top_k_groups, g.input("x", F32, (T, 24)), n_group=6, n_group_used=2))
    made, wanted = run_both(graph, {"x": flawed(24)}, device, T=9)
    np.testing.assert_array_equal(made["y"], wanted["y"])


@on_every_device
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "softmax_of_chosen"])
def test_experts_are_chosen_among_equals_in_order(score: str, device: str) -> None:
    g = Builder()
    x = g.input("x", F32, (T, 40))
    ids, weights = g.results(g.call(route_experts, x, k=5, score=score, normalise=True, low=1e-4))
    values = {"x": flawed(40)[[0, 1, 6, 8, 0, 1, 6, 8, 0]]}
    made, wanted = run_both(g.finish(ids=ids, weights=weights), values, device, T=9)
    np.testing.assert_array_equal(made["ids"], wanted["ids"])
    assert nmse(made["weights"], wanted["weights"]) <= 1e-10


@on_every_device
def test_angles_of_far_positions_are_exact(device: str) -> None:
    g = Builder()
    factors = g.weight("factors", F32, (32,))
    graph = g.finish(y=g.call(rope_table, g.input("positions", I32, (T,)), factors, n_rot=64))
    positions = np.array([0, 1, 7, 4095, 8191, 65535, 65536, 131071, 1048575], np.int32)
    values = {"positions": positions, "factors": np.linspace(1, 9, 32, dtype=np.float32)}
    made, wanted = run_both(graph, values, device, T=9)
    np.testing.assert_allclose(made["y"], wanted["y"], atol=3e-7)


def written(kind: str, width: int) -> tuple[Builder, Node]:
    """A graph that writes rows of 2 heads to a cache."""
    g = Builder()
    state = g.state("cache", dtype(kind), (20, 2, width))
    x, cells = g.input("x", F32, (T, 2, width)), g.input("cells", I32, (T,))
    return g, g.call(set_rows, state, x, cells, to_dtype=kind)


@on_every_device
@pytest.mark.parametrize(
    ("kind", "width"), [("f32", 5), ("f16", 5), ("bf16", 7), ("q8_0", 96), *((kind, 32) for kind in BLOCKS)]
)
def test_caches_are_written_as_encoders_do(kind: str, width: int, device: str) -> None:
    g, cache = written(kind, width)
    x = np.random.default_rng(1).standard_normal((9, 2, width), np.float32)
    x[1] = 0.0
    x[2] *= 1e-3
    x[3, 0] = x[3, 0, 0]
    held = np.zeros((20, 2, dtype(kind).bytes_for(width)), np.uint8)
    held[:] = 77
    plain = dtype(kind).numpy
    values = {
        "x": x,
        "cells": np.array([19, 3, 4, 0, 7, 8, 2, 11, 12], np.int32),
        "cache": held if plain is None else held.view(plain),
    }
    made, wanted = run_both(g.finish(cache=cache), values, device, T=9)
    if device not in REAL:
        np.testing.assert_array_equal(made["cache"], wanted["cache"])
    got, want = (decoded(cache["cache"], kind) for cache in (made, wanted))
    # Devices may divide otherwise by a unit in the last place: a number of a block is one off here and there.
    assert (np.abs(got - want) > np.abs(want) * 1e-6).mean() <= 0.002


def decoded(cache: Array, kind: str) -> Array:
    if dtype(kind).numpy is not None:
        return cache.astype(np.float64)
    n = cache.shape[-1] // dtype(kind).block_bytes * dtype(kind).block_elements
    return dequantize(by_name(kind), cache.reshape(-1, cache.shape[-1]), (cache.size // cache.shape[-1], n))


@on_every_device
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_caches_keep_what_is_no_number(kind: str, device: str) -> None:
    g, cache = written(kind, 4)
    x = np.zeros((9, 2, 4), np.float32)
    x[0, 0] = [np.nan, np.inf, -np.inf, -0.0]
    x[1, 0] = [65504.0, 1e-7, 3e38, -70000.0] if kind == "bf16" else [65504.0, 1e-7, 6e-8, -65504.0]
    plain = dtype(kind).numpy
    held = np.zeros((20, 2, 8), np.uint8)
    values = {
        "x": x,
        "cells": np.arange(9, dtype=np.int32),
        "cache": held if plain is None else held.view(plain),
    }
    made, wanted = run_both(g.finish(cache=cache), values, device, T=9)
    got, want = (decoded(cache["cache"], kind).astype(np.float32) for cache in (made, wanted))
    np.testing.assert_array_equal(got, want)
