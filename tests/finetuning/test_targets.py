"""Which tensors get a pair of factors, by name; the graph pass takes each of them in every architecture."""

from __future__ import annotations

import pytest

import graphml
from graphml.errors import UsageError
from graphml.finetuning.factors import as_adapter, first_pairs, targets
from graphml.passes.lora import adaptable, adapted
from graphml.runtime.programs.model_graphs import ModelGraphs
from tests import golden


def test_targets_are_named_as_in_layers() -> None:
    with graphml.load(golden.file("olmoe-moe"), "reference") as model:
        assert {name.split(".")[2] for name in targets(model, ())} == {
            "attn_q", "attn_k", "attn_v", "attn_output",
        }  # fmt: skip
        assert set(targets(model, ["attn_q"])) == {f"blk.{i}.attn_q.weight" for i in range(2)}
        experts = targets(model, ["ffn_up_exps"])
        assert {len(shape) for shape in experts.values()} == {3}
        assert list(targets(model, ["output"])) == ["output.weight"]
        with pytest.raises(
            UsageError, match=r"targets: wanted some of attn_q, .* got 'attn_w'; did you mean"
        ):
            targets(model, ["attn_w"])


def test_the_pass_takes_every_tensor_that_may_have_a_pair() -> None:
    for name in golden.names():
        with graphml.load(golden.file(name), "reference") as model:
            executor = model.executor
            graphs = ModelGraphs(executor.file, executor.graphs.architecture, executor.config, "f32", True)
            graph = graphs.build(2, 2)
            shapes = adaptable(graph)
            assert shapes, name
            changed = adapted(graph, [as_adapter(first_pairs(shapes, 2, 0))])
            pairs = [leaf for leaf in changed.leaves("weight") if leaf.startswith("adapter.")]
            assert len(pairs) == 2 * len(shapes), name
