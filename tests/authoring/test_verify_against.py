"""`graphml verify`: every mistake of the catalogue planted into an architecture and found again."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.authoring.mistakes import CATALOGUE, applied
from graphml.authoring.verify import search
from graphml.authoring.verify.record import PeerRecord
from graphml.authoring.verify.runs import RecordRuns
from graphml.authoring.verify.search import SearchResult, rows, verify
from graphml.authoring.verify.verdict_text import as_json, as_text
from graphml.ir.graph import Graph
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.sessions.pinned import Room
from tests.authoring.planted_models import HERE, LAYERS, H, K, Tensors, write_model
from tests.inspect.samples import FOLDER

LIMIT = 1e-8
IDS = tuple(int(one) for one in np.random.default_rng(5).integers(0, 48, 9))
HELPERS = """

def regrouped(g, q, *others, **more):
    turn = lambda x: g.reshape(g.permute(g.reshape(x, 2, 2, 8), 0, 2, 1, 3), 4, 8)
    return g.flatten(turn(g.attend(turn(q), *others, **more)))


def by_head(g, qkv, n_head, width):
    whole = g.reshape(qkv, n_head, 3, width)
    parts = [g.columns(g.reshape(whole, n_head, 3 * width), i * width, (i + 1) * width) for i in range(3)]
    return parts


def plus_one(g, x, weight, eps):
    return g.rms_norm(x, g.scale(weight, 1.0, offset=1.0), eps)


def layer_norm(g, x, weight, eps):
    return g.layer_norm(x, weight, None, eps)


def table_of(g, config, layer, table):
    return table if layer % 2 == 0 else g.rope_table(config.head_dim, freq_base=50.0)
"""
HEAD_NORMS = """    q_TNH = g.rms_norm(q_TNH, layer["attn_q_norm"], config.eps)
    k_TKH = g.rms_norm(k_TKH, layer["attn_k_norm"], config.eps)
"""
ROPE = """    q_TNH, k_TKH = g.rope(q_TNH, table, "neox"), g.rope(k_TKH, table, "neox")
"""
WINDOWED = """    window = config.window if layer.index % 2 == 0 else 0
"""
EMBEDDED = 'g.embed(weights["token_embd"], g.tokens)'
POSITIONS = ', g.rows(weights["position_embd"], g.positions))'
PROJECTED = """        h_TD = layer.linear(h_TD, "attn_output")
"""
NORMED = """        h_TD = g.rms_norm(h_TD, layer["post_attention_norm"], config.eps)
"""
ADDED = "x_TD = g.add(x_TD, layer.linear(g.mul"
QKV = "(g.heads(g.columns(qkv, i * width, (i + 1) * width), config.n_head) for i in range(3))"


SHARED = """        gate_TF, up_TF = layer.linear(h_TD, "ffn_gate_shexp"), layer.linear(h_TD, "ffn_up_shexp")
        y_TD = g.add(y_TD, layer.linear(g.mul(g.silu(gate_TF), up_TF), "ffn_down_shexp"))
"""
SUM = """        x_TD = g.add(x_TD, h_TD)
"""
AROUND = """        x_TD = g.rms_norm(g.add(x_TD, h_TD), layer["post_attention_norm"], config.eps)
"""


def without_one(tensors: Tensors) -> None:
    for name in tensors:
        if name.endswith("_norm.weight"):
            tensors[name] = tensors[name] - 1


def transposed(tensors: Tensors) -> None:
    for layer in range(LAYERS):
        name = f"blk.{layer}.attn_q.weight"
        tensors[name] = np.ascontiguousarray(tensors[name].T)


def in_halves(tensors: Tensors) -> None:
    for layer in range(LAYERS):
        for kind in ("weight", "bias"):
            name = f"blk.{layer}.attn_k.{kind}"
            if name in tensors:
                rows = tensors[name].reshape(K, H // 2, 2, -1).swapaxes(1, 2)
                tensors[name] = np.ascontiguousarray(rows.reshape(tensors[name].shape))


def exchanged(tensors: Tensors) -> None:
    for layer in range(LAYERS):
        k, v = (f"blk.{layer}.attn_{one}.weight" for one in "kv")
        tensors[k], tensors[v] = tensors[v], tensors[k]


def two_rows_later(tensors: Tensors) -> None:
    tensors["position_embd.weight"] = np.roll(tensors["position_embd.weight"], 2, axis=0)


@dataclass(frozen=True)
class Plant:
    """A mistake in an architecture: `old` in its text becomes `new`; or in its file: tensors changed.

    swapped: the changed text is what is right, and the unchanged is tested. base: a part of the text, and
    what both have in its place.
    """

    mistake: str
    of: str
    old: str = ""
    new: str = ""
    broken: Callable[[Tensors], None] | None = None
    swapped: bool = False
    base: tuple[str, str] = ("", "")


PLANTS = [
    Plant("tensor-for-another", "gated", '"attn_v"', '"attn_k"'),
    Plant("tensor-for-another", "gated", '"ffn_up")', '"ffn_gate")'),
    Plant("tensor-for-another", "gated", 'layer["ffn_norm"]', 'layer["attn_norm"]'),
    Plant("tensor-for-another", "gated", 'layer["post_attention_norm"]', 'layer["attn_norm"]'),
    Plant("tensor-for-another", "gated", 'layer["attn_k_norm"]', 'layer["attn_q_norm"]'),
    Plant("tensor-for-another", "plain", '"ffn_norm", y_TD', '"attn_norm", y_TD'),
    Plant("tensor-for-another", "experts", '"ffn_up_exps"', '"ffn_gate_exps"'),
    Plant("tensor-for-another", "experts", '"ffn_gate_shexp"', '"ffn_up_shexp"'),
    Plant("tensor-of-another-layer", "experts", 'layer["ffn_norm"]', 'weights["blk.0.ffn_norm"]'),
    Plant("layer-missing", "plain", "weights.layers(config.n_layer)", "weights.layers(config.n_layer - 1)"),
    Plant("layer-missing", "experts", "weights.layers(config.n_layer)", "weights.layers(config.n_layer - 1)"),
    Plant("layer-missing", "gated", "weights.layers(config.n_layer)", "weights.layers(config.n_layer - 1)"),
    Plant("residual-of-normed", "gated", ADDED, ADDED.replace("(x_TD", "(h_TD")),
    Plant("residual-of-normed", "gated", ADDED, ADDED.replace("(x_TD", "(h_TD"), swapped=True),
    Plant("residual-of-normed", "experts", "g.add(x_TD, y_TD)", "g.add(h_TD, y_TD)"),
    Plant("residual-forgotten", "gated", ADDED, ADDED.replace("g.add(x_TD, ", "(")),
    Plant("residual-forgotten", "experts", "g.add(x_TD, layer.linear(attention(", "(layer.linear(attention("),
    Plant("norm-superfluous", "gated", 'linear(x_TD, "attn_q")',
          'linear(g.rms_norm(x_TD, layer["attn_norm"], config.eps), "attn_q")'),
    Plant("norm-superfluous", "experts", 'g.rms_norm(x_TD, layer["ffn_norm"], config.eps)', "x_TD",
          swapped=True),
    Plant("norm-superfluous", "experts", EMBEDDED, f"g.rms_norm({EMBEDDED}, None, config.eps)"),
    Plant("sum-superfluous", "experts", "g.add(x_TD, y_TD)", "g.add(g.add(x_TD, y_TD), h_TD)"),
    Plant("norm-on-other-side", "gated", PROJECTED + NORMED, NORMED + PROJECTED),
    Plant("norm-on-other-side", "gated", PROJECTED + NORMED, NORMED + PROJECTED, swapped=True),
    Plant("input-before-norm", "experts", 'h_TD, "ffn_gate_shexp"), layer.linear(h_TD',
          'x_TD, "ffn_gate_shexp"), layer.linear(x_TD'),
    Plant("input-before-norm", "experts", 'h_TD, "ffn_gate_shexp"), layer.linear(h_TD',
          'x_TD, "ffn_gate_shexp"), layer.linear(x_TD', swapped=True),
    Plant("block-norm-forgotten", "experts", 'g.rms_norm(x_TD, layer["ffn_norm"], config.eps)', "x_TD"),
    Plant("block-norm-forgotten", "plain", 'linear(h_TD, "ffn_up")', 'linear(y_TD, "ffn_up")'),
    Plant("tensor-for-another", "experts", '"attn_output")', '"attn_q")'),
    Plant("tensor-for-another", "gated", 'weights["output_norm"]', 'weights["blk.0.attn_norm"]'),
    Plant("tensor-of-another-layer", "experts", "weights.layers(config.n_layer)", "weights.layers([0, 0])"),
    Plant("gate-up-swapped", "experts", "g.silu(gate_TUF), up_TUF", "g.silu(up_TUF), gate_TUF"),
    Plant("positions-forgotten", "plain", "g.add(" + EMBEDDED + POSITIONS, EMBEDDED),
    Plant("rope-superfluous", "gated", "k_TKH, v_TKH, layer", 'k_TKH, g.rope(v_TKH, table, "neox"), layer'),
    Plant("rope-order", "gated", '"neox"', '"norm"'),
    Plant("rope-base", "gated", "freq_base=config.base", "freq_base=1e4"),
    Plant("rope-factors-forgotten", "gated", 'head_dim, weights["rope_freqs"]', "head_dim"),
    Plant("rope-forgotten", "gated", ROPE, ""),
    Plant("rope-superfluous", "gated", ROPE, "", swapped=True),
    Plant("rope-and-head-norm", "gated", HEAD_NORMS + ROPE, ROPE + HEAD_NORMS),
    Plant("rope-and-head-norm", "gated", HEAD_NORMS + ROPE, ROPE + HEAD_NORMS, swapped=True),
    Plant("norm-weight-plus-one", "gated", broken=without_one),
    Plant("norm-weight-plus-one", "gated", "g.rms_norm(", "plus_one(g, "),
    Plant("norm-weight-forgotten", "gated", 'layer["attn_q_norm"]', "None"),
    Plant("norm-weight-forgotten", "experts", 'layer["ffn_norm"]', "None"),
    Plant("norm-weight-forgotten", "gated", 'weights["output_norm"]', "None"),
    Plant("norm-kind", "gated", "g.rms_norm(", "layer_norm(g, "),
    Plant("norm-eps", "gated", "config.eps", "1e-3"),
    Plant("norm-forgotten", "gated", 'g.rms_norm(h_TD, layer["post_attention_norm"], config.eps)', "h_TD"),
    Plant("norm-forgotten", "gated", HEAD_NORMS, ""),
    Plant("bias-forgotten", "gated", 'layer.linear(x_TD, "attn_q")', 'g.mul_mat(layer["attn_q"], x_TD)'),
    Plant("kv-groups", "gated", "g.attend(", "regrouped(g, "),
    Plant("attention-scale", "gated", "config.head_dim**-0.5", "1.0"),
    Plant("attention-softcap", "gated", "softcap=4.0", "softcap=0.0"),
    Plant("attention-softcap", "gated", "softcap=4.0", "softcap=0.0", swapped=True),
    Plant("attention-sinks-forgotten", "gated", ', sinks=layer["attn_sinks"]', ""),
    Plant("window-off-by-one", "gated", "window = config.window if", "window = config.window + 1 if"),
    Plant("window-off-by-one", "gated", "window = config.window if", "window = config.window - 1 if"),
    Plant("window", "gated", "layer.index % 2 == 0", "layer.index % 2 == 1"),
    Plant("window", "gated", "config.window if layer.index % 2 == 0 else 0", "0"),
    Plant("gate-up-swapped", "gated", "g.gelu(gate_TF), up_TF", "g.gelu(up_TF), gate_TF"),
    Plant("activation", "gated", "g.gelu(", "g.silu("),
    Plant("activation", "gated", "g.gelu(", "g.gelu_quick("),
    Plant("embedding-scale", "gated", "g.scale(x_TD, config.n_embd**0.5)", "x_TD"),
    Plant("embedding-scale", "gated", "g.scale(x_TD, config.n_embd**0.5)", "x_TD", swapped=True),
    Plant("logit-softcap", "gated", 'g.softcap(weights.linear(x_OD, "output"), 3.0)',
          'weights.linear(x_OD, "output")'),
    Plant("positions-off", "plain", broken=two_rows_later),
    Plant("norm-bias-forgotten", "plain", 'weights[f"{name}.bias"]', "None"),
    Plant("norm-kind", "plain", 'g.layer_norm(x, weights[name], weights[f"{name}.bias"], config.eps)',
          'g.add(g.rms_norm(x, weights[name], config.eps), weights[f"{name}.bias"])'),
    Plant("qkv-order", "plain", QKV, "by_head(g, qkv, config.n_head, config.head_dim)"),
    Plant("qkv-order", "plain", QKV, "by_head(g, qkv, config.n_head, config.head_dim)", swapped=True),
    Plant("bias-forgotten", "plain", 'layer.linear(x_TD, "attn_qkv")', 'g.mul_mat(layer["attn_qkv"], x_TD)'),
    Plant("alibi", "plain", "max_bias=8.0", "max_bias=0.0"),
    Plant("activation", "plain", "g.relu(layer", "g.silu(layer"),
    Plant("activation", "plain", 'g.relu(layer.linear(h_TD, "ffn_up"))',
          'g.sqr(g.relu(layer.linear(h_TD, "ffn_up")))'),
    Plant("parallel-residual", "plain", '"ffn_norm", y_TD', '"ffn_norm", x_TD'),
    Plant("parallel-residual", "plain", '"ffn_norm", y_TD', '"ffn_norm", x_TD', swapped=True),
    Plant("residual-scale-forgotten", "plain", "g.scale(a_TD, config.residual)", "a_TD"),
    Plant("logit-scale-forgotten", "plain", 'g.scale(weights.linear(x_OD, "token_embd"), config.logits)',
          'weights.linear(x_OD, "token_embd")'),
    Plant("rope-dimensions", "experts", "g.rope_table(config.n_rot,", "g.rope_table(8,"),
    Plant("rope-scaling", "experts", ", freq_scale=1.0 / config.stretch", ""),
    Plant("transposed-weight", "experts", broken=transposed),
    Plant("head-permutation", "experts", broken=in_halves),
    Plant("taken-for-another", "experts", broken=exchanged),
    Plant("scale-forgotten", "experts",
          'layer.linear(attention(g, config, layer, table, h_TD), "attn_output")',
          'g.mul_mat(layer["attn_output"], attention(g, config, layer, table, h_TD))'),
    Plant("output-forgotten", "experts", '"output")', '"token_embd")'),
    Plant("shared-expert-forgotten", "experts", SHARED, ""),
    Plant("expert-weights-sum", "experts", "g.div(weights_TU, g.sum_rows(weights_TU))", "weights_TU"),
    Plant("expert-weights-sum", "experts", "g.div(weights_TU, g.sum_rows(weights_TU))", "weights_TU",
          swapped=True),
    Plant("expert-gating", "experts", "g.softmax(layer", "g.sigmoid(layer"),
    Plant("expert-scale-forgotten", "experts", "g.scale(weights_TU, config.scale)", "weights_TU"),
    Plant("residual-scale-forgotten", "plain", "g.scale(a_TD, config.residual)",
          "g.scale(a_TD, config.residual if layer.index else 1.0)"),
    Plant("expert-count", "experts", "config.n_used", "(config.n_used - 1)"),
    Plant("expert-count", "experts", "config.n_used", "(config.n_used + 1)"),
    Plant("expert-groups", "experts", "g.top_k(scores_TE", "g.top_k(g.top_k_groups(scores_TE, 2, 1)",
          swapped=True),
    Plant("expert-groups", "experts", "g.top_k(scores_TE", "g.top_k(g.top_k_groups(scores_TE, 2, 1)"),
    Plant("input-before-norm", "experts", 'g.softmax(layer.linear(x_TD', 'g.softmax(layer.linear(stream_TD'),
    Plant("input-before-norm", "experts", 'g.softmax(layer.linear(x_TD', 'g.softmax(layer.linear(stream_TD',
          swapped=True),
    Plant("looks-ahead", "gated", "layer.index, scale, window,", "layer.index, scale, window, causal=False,"),
    Plant("looks-ahead", "plain", "max_bias=8.0", "max_bias=8.0, causal=False"),
    Plant("layers-in-another-order", "experts", "weights.layers(config.n_layer)",
          "weights.layers(list(range(config.n_layer))[::-1])"),
    Plant("window-of-another-layer", "gated", "3 if layer.index else 6", "6 if layer.index else 3",
          base=("config.window if layer.index % 2 == 0 else 0", "3 if layer.index else 6")),
    Plant("rope-of-another-layer", "gated", "table_of(g, config, layer.index",
          "table_of(g, config, layer.index + 1",
          base=("layer, table, h_TD)", "layer, table_of(g, config, layer.index, table), h_TD)")),
    Plant("norm-around-sum", "gated", NORMED + SUM, AROUND),
    Plant("norm-around-sum", "gated", NORMED + SUM, AROUND, swapped=True),
    Plant("logit-scale-inverted", "plain", "config.logits)", "1 / config.logits)"),
]  # fmt: skip


@functools.cache
def right(name: str, text: str) -> tuple[Path, PeerRecord]:
    """A model, and what the right architecture makes of it; plants of one text share both."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    model, arch = write_model(folder / "model.gguf", name), folder / "right.py"
    arch.write_text(text)
    with opened(model, arch) as executor:
        return model, RecordRuns(executor, IDS).record(f"right {name}")


def opened(model: Path, arch: Path) -> AbstractContextManager[Executor]:
    return closing(open_executor(model, LoadOptions("reference", arch=arch, kv="f32", n_batch=32)))


def planted(plant: Plant, folder: Path) -> tuple[PeerRecord, SearchResult]:
    """The right values, and the verdict on the architecture with the mistake."""
    record, executor = prepared(plant, folder)
    with closing(executor):
        return record, verify(executor, record, LIMIT)


def prepared(plant: Plant, folder: Path) -> tuple[PeerRecord, Executor]:
    """The right values, and the model opened with the mistake."""
    text = (HERE / f"{plant.of}.py").read_text()
    assert plant.base[0] in text
    text = text.replace(*plant.base) if plant.base[0] else text
    assert plant.broken is not None or plant.old in text
    changed = text.replace(plant.old, plant.new) if plant.old else text
    model, record = right(plant.of, (changed if plant.swapped else text) + HELPERS)
    wrong = folder / "wrong.py"
    wrong.write_text((text if plant.swapped else changed) + HELPERS)
    tested = write_model(folder / "broken.gguf", plant.of, plant.broken) if plant.broken else model
    return record, open_executor(tested, LoadOptions("reference", arch=wrong, kv="f32", n_batch=32))


IDENTS = [f"{i}-{plant.mistake}-{plant.of}" for i, plant in enumerate(PLANTS)]


@pytest.mark.parametrize("plant", PLANTS, ids=IDENTS)
def test_a_planted_mistake_is_named(plant: Plant, tmp_path: Path) -> None:
    verdict = planted(plant, tmp_path)[1]
    assert verdict.first is not None
    assert verdict.logits.nmse > LIMIT
    assert [cause.mistake.name for cause in verdict.causes][:1] == [plant.mistake], verdict.causes
    assert all(cause.enough and cause.mistake.name == plant.mistake for cause in verdict.causes)
    assert verdict.mended is not None
    assert verdict.mended.nmse <= LIMIT


def test_gate_and_up_are_told_apart_with_relu_squared(tmp_path: Path) -> None:
    text = (HERE / "gated.py").read_text() + HELPERS
    gelu, squared = "g.gelu(gate_TF), up_TF", "g.sqr(g.relu({})), {}"
    model, record = right("gated", text.replace(gelu, squared.format("gate_TF", "up_TF")))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace(gelu, squared.format("up_TF", "gate_TF")))
    with opened(model, wrong) as executor:
        assert [one.mistake.name for one in verify(executor, record, LIMIT).causes] == ["gate-up-swapped"]


@pytest.mark.parametrize("failing", [1, 99])
def test_an_edit_that_fails_in_another_part_is_no_cause(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first edits that are tried on all parts fail there: of two scopes the other is left, or none."""
    tried: list[object] = []

    def failing_rows(runs: RecordRuns, graph: object, *others: Any, **named: Any) -> Any:
        if graph is not runs.graph and not any(graph is one for one in tried):
            tried.append(graph)
            if len(tried) <= failing:
                raise IndexError("rows out of range")
        return rows(runs, graph, *others, **named)

    monkeypatch.setattr(search, "rows", failing_rows)
    verdict = planted(Plant("rope-order", "gated", '"neox"', '"norm"'), tmp_path)[1]
    assert verdict.first is not None
    names = [cause.mistake.name for cause in verdict.causes if cause.enough]
    assert names[:1] == ([] if failing == 99 else ["rope-order"])


def test_an_edit_that_does_not_fit_every_part_is_no_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried on the wrong part, which it mends."""

    def fitting(graph: Graph, change: Any, layers: Any = None) -> Graph:
        if "logits" in graph.outputs and layers is None:
            raise IndexError("another part has no such operand")
        return applied(graph, change, layers)

    monkeypatch.setattr(search, "applied", fitting)
    verdict = planted(Plant("rope-order", "gated", '"neox"', '"norm"'), tmp_path)[1]
    assert verdict.first is not None
    assert not [cause for cause in verdict.causes if cause.enough]


PAIRS = {
    "rope-and-head-norm and rope-order": (HEAD_NORMS + ROPE, ROPE.replace("neox", "norm") + HEAD_NORMS),
    "attention-scale and rope-order": (
        ROPE + WINDOWED + "    scale = config.head_dim**-0.5",
        ROPE.replace("neox", "norm") + WINDOWED + "    scale = 1.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", PAIRS)
def test_two_mistakes_of_one_attention_are_named(names: str, tmp_path: Path) -> None:
    record, verdict = planted(Plant(names, "gated", *PAIRS[names]), tmp_path)
    (cause,) = verdict.causes
    assert sorted(cause.mistake.name.split(" and ")) == sorted(names.split(" and "))
    assert cause.enough
    assert verdict.mended is not None
    assert verdict.mended.nmse <= LIMIT
    assert f"likely cause: {cause.mistake.name}" in as_text(verdict, record, "model", "gated")


def test_a_pair_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mistakes of logits alone: each pair is computed once, the one that is found too."""
    computed: list[int] = []
    error = search.own_error

    def counted(stage: Any, got: Any, *others: Any) -> float:
        computed.append(got.tobytes().__hash__())
        return error(stage, got, *others)

    text = (HERE / "plain.py").read_text()
    model, record = right("plain", text + HELPERS)
    wrong = tmp_path / "wrong.py"
    scale = "g.scale(a_TD, config.residual)"
    logits = 'g.scale(weights.linear(x_OD, "token_embd"), config.logits)'
    wrong.write_text(
        text.replace(scale, "a_TD").replace(logits, 'weights.linear(x_OD, "token_embd")') + HELPERS
    )
    few = [one for one in CATALOGUE if one.name in ("residual-scale-forgotten", "logit-scale-forgotten")]
    monkeypatch.setattr(search, "CATALOGUE", tuple(few))
    monkeypatch.setattr(search, "own_error", counted)
    with opened(model, wrong) as executor:
        verdict = verify(executor, replace(record, values={}), LIMIT)
    (cause,) = verdict.causes
    assert "and" in cause.mistake.name
    assert len(computed) == len(set(computed))


def test_every_mistake_is_planted() -> None:
    assert {plant.mistake for plant in PLANTS} == {mistake.name for mistake in CATALOGUE}


@pytest.mark.parametrize("name", ["gated", "plain", "experts"])
def test_what_is_right_is_found_right(name: str) -> None:
    arch = HERE / f"{name}.py"
    model, record = right(name, arch.read_text() + HELPERS)
    with opened(model, arch) as executor:
        verdict = verify(executor, record, LIMIT)
    assert (verdict.first, verdict.causes, verdict.mended) == (None, [], None)
    assert verdict.agrees
    assert [one.way for one in verdict.steps] == ["uneven steps", "one token a step"]
    assert [row.stage.name for row in verdict.rows] == [
        "embedding",
        *(f"layer {i}" for i in range(LAYERS)),
        "output",
    ]
    assert verdict.logits.same_top == verdict.logits.overlap == 1.0


def test_unused_tensors_are_told_by_their_part_and_scales_are_not(tmp_path: Path) -> None:
    record, verdict = planted(Plant("shared-expert-forgotten", "experts", SHARED, ""), tmp_path)
    told = as_text(verdict, record, "model", "experts").splitlines()[-1]
    assert told == (
        "tensors that the architecture leaves unused: blk.0-1.ffn_down_shexp.weight, "
        "blk.0-1.ffn_gate_shexp.weight, blk.0-1.ffn_up_shexp.weight"
    )
    scaled = replace(verdict, unused=["blk.0.attn_q.scale", "blk.0.attn_q.input_scale"])
    assert "unused" not in as_text(scaled, record, "model", "experts")


# By logits alone a head's rows in another order are a rope of other pairs, where both q and k have them.
TOLD = {"rope-order", "norm-weight-plus-one", "attention-scale", "window-off-by-one", "gate-up-swapped",
        "activation", "bias-forgotten", "logit-softcap", "transposed-weight", "head-permutation"}  # fmt: skip
ALONE = list({plant.mistake: plant for plant in PLANTS if plant.mistake in TOLD}.values())


@pytest.mark.parametrize("plant", ALONE, ids=[f"{i}-{plant.mistake}" for i, plant in enumerate(ALONE)])
def test_logits_alone_tell_a_single_mistake(plant: Plant, tmp_path: Path) -> None:
    record, executor = prepared(plant, tmp_path)
    with closing(executor):
        verdict = verify(executor, replace(record, values={}), LIMIT)
    assert [row.stage.name for row in verdict.rows] == ["model"]
    assert [cause.mistake.name for cause in verdict.causes] == [plant.mistake]
    assert verdict.causes[0].enough


def test_a_model_that_is_right_at_once_and_wrong_in_steps_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is whose value depends on the tokens of the step."""
    arch = HERE / "plain.py"
    model, record = right("plain", arch.read_text() + HELPERS)
    with opened(model, arch) as executor:
        real = Room.step

        def step(room: Room, ids: Any, **named: Any) -> Any:
            logits = real(room, ids, **named)
            return logits if len(logits) == 1 else logits * np.float32(1.01)

        monkeypatch.setattr(Room, "step", step)
        verdict = verify(executor, record, LIMIT)
    assert verdict.first is None
    assert not verdict.agrees
    text = as_text(verdict, record, "m", "plain")
    assert re.search(r"wrong in one token a step: NMSE 9.8e-05 to the text at once, at token \d+:", text)
    assert as_json(verdict, record)["agrees"] is False
