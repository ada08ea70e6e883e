"""What a node has to do: the bytes that it moves and its operations."""

from __future__ import annotations

from itertools import count as counting

import numpy as np

from graphml.ir.dtype import F16, F32, dtype
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.ir.work import Work, sizes_at, work
from tests.inspect import samples
from tests.sample_models import MODELS


def test_bytes_and_operations_of_products_and_lookups() -> None:
    g = Builder()
    q8 = dtype("q8_0")
    x = g.embed(g.weight("table", q8, (100, 64)), g.tokens)
    y = g.mul_mat(g.weight("w", F32, (48, 64)), x, name="y")
    sizes = sizes_at({"T": 3}, 0)
    assert work(x, sizes) == Work(3 * (64 // 32 * 34) + 3 * 4)
    assert work(y, sizes) == Work(4 * 48 * 64 + 3 * 4 * 64, 2 * 3 * 48 * 64)
    assert work(g.reshape(y, 6, 8), sizes) == Work()


def test_attention_reads_the_cells_in_use() -> None:
    g = Builder(max_tokens=512, max_cells=4096)
    q, k, v = (g.input(name, F32, (g.n_tokens, heads, 16)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))

    layers = counting()

    def attention(window: int) -> Node:
        flat = g.attend(q, k, v, next(layers), 1.0, window=window)
        return flat.inputs[0]

    def at(node: Node, count: int, past: int) -> tuple[int, int]:
        found = work(node, sizes_at({"T": count, "S": 1, "B": 128, "C": 4096}, past))
        blocks = -(-(past + count) // 32)
        rest = count * 4 * (4 * 16 + 2) + 4 * blocks
        return (found.n_bytes - rest) // (2 * 2 * 16 * 2), found.flops // (2 * 4 * 2 * 16)

    assert g.cache_types.of(0).dtypes == (F16, F16)
    assert at(attention(0), 1, 99) == (100, 100)
    assert at(attention(0), 4, 0) == (4, 1 + 2 + 3 + 4)
    assert at(attention(8), 1, 99) == (8, 8)
    assert at(attention(8), 4, 99) == (11, 4 * 8)


def test_fused_products_do_what_their_parts_do() -> None:
    executor = samples.executor(next(name for name in MODELS if name.startswith("llama-")), "cpu", "q8_0")
    sizes = sizes_at({"T": 1, "O": 1}, 7)
    qkv = next(node for node in executor.compiled(1, 1).graph.nodes if node.name.endswith(".q+k+v"))
    weights = [source for source in qkv.inputs if source.op.name == "weight"]
    rows, width = sum(fixed(weight.shape[0]) for weight in weights), fixed(weights[0].shape[1])
    found = work(qkv, sizes)
    assert found.flops == 2 * rows * width
    assert rows * (width // 32 * 34) < found.n_bytes < rows * (width // 32 * 34) + 4096


def test_experts_that_are_not_used_are_not_read() -> None:
    model = next(name for name in MODELS if "expert" in name or "moe" in name)
    graph = samples.executor(model, "cpu").compiled(1, 1).graph
    experts = [node for node in graph.nodes if node.op.name.endswith("_id")]
    assert experts
    for node in experts:
        weights = [source for source in node.inputs if source.op.name == "weight" and len(source.shape) == 3]
        whole = sum(int(np.prod([int(str(d)) for d in source.shape])) * 4 for source in weights)
        assert 0 < work(node, sizes_at({"T": 1, "O": 1}, 0)).n_bytes < whole
