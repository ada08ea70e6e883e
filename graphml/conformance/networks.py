"""Whole small networks, which test more than single ops: fusions, values in place, a cache over steps.

Two layers with grouped-query attention, dense or with experts, compiled as a model is. Knows backends by
their contract alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from graphml.backend import Backend, Device, State
from graphml.compiler.compile import Compiled, compile_graph
from graphml.conformance.fill import blocks
from graphml.conformance.verdict import Verdict, judge
from graphml.inspect.compare.tolerances import makes_int8
from graphml.ir.cells import cells_of
from graphml.ir.dtype import F32, DType, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.linear import decode

OP = "network"
WIDTH, HIDDEN, VOCABULARY = 256, 512, 96
HEADS, HEADS_KV, HEAD_WIDTH = 4, 2, 64
EXPERTS, USED = 4, 2
CELLS, BLOCK, MOST_TOKENS = 64, 16, 12
# Tokens of each step, and the bound of its program: a prompt, tokens one by one, another batch.
STEPS = ((9, MOST_TOKENS), (1, 1), (1, 1), (5, MOST_TOKENS))
# NMSE of the logits, and of keys and values: rounding accumulates, and int8 and caches sometimes round the
# other way. ggml allows a layer 2e-3.
LIMITS = {
    "graphml": {"float": 1e-8, "cache": 1e-4, "int8": 2e-3},
    "ggml": dict.fromkeys(("float", "cache", "int8"), 2e-3),
}


@dataclass(frozen=True)
class Network:
    """A kind of network, the format of its matrices and the dtype of its cache."""

    kind: str
    format: str = "f32"
    cache: str = "f32"

    @property
    def name(self) -> str:
        """`network/dense q4_0`."""
        return f"{OP}/{self.kind} {self.format}, cache {self.cache}"


NETWORKS = (
    Network("dense"), Network("dense", "q4_0", "f16"), Network("dense", "q6_k", "q8_0"),
    Network("experts"), Network("experts", "q8_0", "f16"),
)  # fmt: skip


class _Weights:
    """Makes weight nodes by the builder."""

    def __init__(self, g: Builder, form: DType) -> None:
        self._g, self._form = g, form

    def matrix(self, name: str, *shape: int) -> Node:
        return self._g.weight(name, self._form, shape)

    def norm(self, name: str) -> Node:
        return self._g.weight(name, F32, (WIDTH,))


def graph_of(network: Network, tokens: int) -> Graph:
    """The graph of a step of at most so many tokens; its output is `logits` [O, vocabulary]."""
    g = Builder(tokens, tokens, 1, CELLS, BLOCK, network.cache)
    weights = _Weights(g, dtype(network.format))
    table = g.rope_table(HEAD_WIDTH)
    x = g.embed(weights.matrix("embedding", VOCABULARY, WIDTH), g.tokens)
    for layer in range(2):
        with g.scope(f"layers.{layer}"):
            h = g.rms_norm(x, weights.norm(f"{layer}.n1"), 1e-5)
            x = g.add(x, _attention(g, weights, h, table, layer))
            h = g.rms_norm(x, weights.norm(f"{layer}.n2"), 1e-5)
            branch = (_experts if network.kind == "experts" else _dense)(g, weights, h, layer)
            x = g.add(x, branch)
    x = g.rms_norm(g.select_output_rows(x), weights.norm("last"), 1e-5)
    return g.finish(logits=g.mul_mat(weights.matrix("head", VOCABULARY, WIDTH), x))


def _attention(g: Builder, weights: _Weights, x: Node, table: Node, layer: int) -> Node:
    def heads(name: str, count: int) -> Node:
        matrix = weights.matrix(f"{layer}.{name}", count * HEAD_WIDTH, WIDTH)
        return g.heads(g.mul_mat(matrix, x), count)

    q, k = (g.rope(heads(name, n), table, "neox") for name, n in (("q", HEADS), ("k", HEADS_KV)))
    y = g.attend(q, k, heads("v", HEADS_KV), layer, HEAD_WIDTH**-0.5)
    return g.mul_mat(weights.matrix(f"{layer}.o", WIDTH, HEADS * HEAD_WIDTH), y)


def _dense(g: Builder, weights: _Weights, x: Node, layer: int) -> Node:
    gate, up = (g.mul_mat(weights.matrix(f"{layer}.{name}", HIDDEN, WIDTH), x) for name in ("gate", "up"))
    return g.mul_mat(weights.matrix(f"{layer}.down", WIDTH, HIDDEN), g.mul(g.silu(gate), up))


def _experts(g: Builder, weights: _Weights, x: Node, layer: int) -> Node:
    scores = g.softmax(g.mul_mat(g.weight(f"{layer}.router", F32, (EXPERTS, WIDTH)), x))
    ids = g.top_k(scores, USED)
    chosen = g.gather(scores, ids)
    share = g.div(chosen, g.clamp(g.sum_rows(chosen), 1e-4, float("inf")))
    both = [weights.matrix(f"{layer}.{name}", EXPERTS, HIDDEN, WIDTH) for name in ("gate", "up")]
    gate, up = (g.mul_mat_id(matrix, x, ids) for matrix in both)
    down = weights.matrix(f"{layer}.down", EXPERTS, WIDTH, HIDDEN)
    y = g.mul(g.mul_mat_id(down, g.mul(g.silu(gate), up), ids), g.reshape(share, USED, 1))
    return g.reshape(g.sum_rows(g.permute(y, 0, 2, 1)), WIDTH)


def check(backend: Backend, device: Device, limits: str = "graphml") -> Iterator[Verdict]:
    """The verdict on each network."""
    for network in NETWORKS:
        yield check_one(network, backend, device, limits)


def check_one(network: Network, backend: Backend, device: Device, limits: str = "graphml") -> Verdict:
    """Run a network step by step; returns the verdict of the first wrong step, else of the worst."""
    limit, worst, run = 0.0, 0.0, ""
    call = f"two layers, {WIDTH} wide, matrices of {network.format}, keys and values of {network.cache}"
    try:
        for run, limit, results in _steps(network, backend, device, limits):
            for name, (got, wanted) in results.items():
                nmse, problem = judge(got, wanted, limit)
                worst = max(worst, nmse)
                if problem:
                    problem = f"{name}: {problem}"
                    return Verdict(network.name, OP, network.format, call, run, nmse, limit, problem)
    except Exception as error:  # third-party code may raise anything
        problem = f"{type(error).__name__}: {error}"
        return Verdict(network.name, OP, network.format, call, run, float("inf"), limit, problem)
    return Verdict(network.name, OP, network.format, call, run, worst, limit)


def _steps(
    network: Network, backend: Backend, device: Device, limits: str
) -> Iterator[tuple[str, float, dict[str, tuple[Array, Array]]]]:
    """Each step's name, its limit, and its results and the wanted ones by name."""
    plain = {most: graph_of(network, most) for _, most in STEPS}
    weights = {name: _weight(node) for name, node in plain[1].leaves("weight").items()}
    programs = {most: compile_graph(graph, backend, device, weights) for most, graph in plain.items()}
    n_held = 0
    state, kept = None, dict[str, Array]()
    for i, (count, most) in enumerate(STEPS):
        compiled = programs[most]
        inputs, dims = _inputs(n_held, i, count)
        n_held += count
        if state is None:
            state = device.state(compiled.graph, dims)
            kept = {name: np.array(state.array(name)) for name in compiled.graph.leaves("state")}
        converted = any(node.op.writes is None and makes_int8(node) for node in compiled.graph.nodes)
        rounding = "int8" if converted else "float" if network.cache == "f32" else "cache"
        limit = LIMITS[limits][rounding]
        results = _run(compiled, inputs, weights, dims, state, kept)
        yield f"step {i} of {count} tokens of at most {most}", limit, results


def _run(
    compiled: Compiled, inputs: Mapping[str, Array], weights: Mapping[str, Array], dims: Mapping[str, int],
    state: State, kept: dict[str, Array],
) -> dict[str, tuple[Array, Array]]:  # fmt: skip
    """Run one step on the device and in NumPy; both change their states."""
    program = compiled.program
    for name in compiled.graph.leaves("input"):
        program.inputs[name][tuple(map(slice, inputs[name].shape))] = inputs[name]
    wanted = interpret(compiled.graph, {**weights, **inputs, **kept})
    results = {name: (np.array(got), wanted[name]) for name, got in program.run(dims, state).items()}
    for name, node in compiled.graph.leaves("state").items():
        got, right = np.array(state.array(name)), kept[name]
        if node.dtype.is_format and got.shape == right.shape:
            got, right = decode(got, node.dtype), decode(right, node.dtype)
        results[name] = got, right
    return results


def _inputs(n_held: int, i: int, count: int) -> tuple[dict[str, Array], dict[str, int]]:
    """Step `i` of `count` tokens behind `n_held`; no block is at the position of its number."""
    generator = np.random.default_rng(i)
    table = np.arange(CELLS // BLOCK, dtype=np.int32)[::-1]
    positions = np.arange(n_held, n_held + count, dtype=np.int32)
    wanted = np.arange(count, dtype=np.int32)
    tokens = generator.integers(0, VOCABULARY, count, dtype=np.int32)
    inputs = {
        "tokens": tokens, "positions": positions, "cells": cells_of(table, positions, BLOCK),
        "sequences": np.zeros(count, np.int32), "output_rows": wanted, "block_table": table[None].copy(),
    }  # fmt: skip
    return inputs, {"T": count, "O": count, "S": 1, "B": len(table), "C": CELLS}


def _weight(node: Node) -> Array:
    """Normal numbers that keep the size of the values that they multiply; for a norm, near 1."""
    generator = np.random.default_rng(list(node.name.encode()))
    shape = tuple(int(dim) for dim in node.shape if isinstance(dim, int))
    if len(shape) == 1:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    return blocks(node.dtype, shape, generator, shape[-1] ** -0.5)
