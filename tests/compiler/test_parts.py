"""Models on several backends at once: the same answers as on one, in as few parts as the rules allow."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.compiler.compile import Compiled
from graphml.compiler.parts_program import PartsProgram
from graphml.errors import BackendError
from graphml.inspect.compare.observe import observe
from graphml.inspect.dumps.placed_nodes import describe_placement
from graphml.ir.verify import verify
from graphml.loading import discovery
from graphml.passes.cut import constants
from graphml.passes.placement_rules import layer_of
from tests import golden
from tests.compiler.parted import (
    BOTH,
    LAYERS,
    LIMIT,
    built,
    evaluate,
    opened,
    refused_ops,
    without_kernel,
)
from tests.golden import Floats, nmse
from tests.model_forms import distinct
from tests.one_text import OneText
from tests.sample_models import MODELS, write_model

PLACES = [
    ("", 1),
    (LAYERS, 2),
    ("reference:layers.0,cpu:layers.1", 2),
    ("reference:layers.0", 2),
    ("reference:attention", 5),
    ("reference:set_rows", 5),
    ("reference:rms_norm", 11),
    ("reference:cache.1.*", 3),
    ("reference:blk.0.attn_output.weight", 3),
    ("reference:layers.*,cpu:attention", 5),
]


@pytest.mark.parametrize("name", golden.FEW)
@pytest.mark.parametrize(("place", "parts"), PLACES)
@pytest.mark.parametrize("backend", [BOTH, "reference,cpu"])
def test_split_goldens_say_what_llama_cpp_says(
    name: str, backend: str, place: str, parts: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHML_VERIFY", "1")
    one = golden.read(name)
    with opened(built(name, folder), backend, place) as executor:
        batch = evaluate(executor, [one.tokens])
        steps = evaluate(executor, [one.tokens[:16], *([token] for token in one.tokens[16:])])
        compiled = executor.compiled(1, 1)
    assert nmse(batch, one.logits) <= LIMIT
    assert nmse(steps, one.logits) <= LIMIT
    if backend == BOTH:
        assert len(compiled.parts) == parts
    check_placement(compiled)


def check_placement(compiled: Compiled) -> None:
    """Every node has a place, states are on one device, and the joined graph is whole."""
    placement = compiled.placement
    assert placement is not None
    verify(compiled.graph)
    for part in compiled.parts:
        verify(part.graph)
        for name in part.graph.leaves("state"):
            assert placement.places[name].backend == part.backend
    computed = {node for node in compiled.graph.nodes if node.op.family != "leaf"}
    assert computed <= set(compiled.backends)
    assert {copy.name for copy in placement.cut.copies} <= set(placement.places)
    assert list(compiled.snapshots)[:2] == ["build", "place"]
    assert set(compiled.seconds) == {*compiled.snapshots, "plan", "lower"}


@pytest.mark.parametrize("form", ["q4_1", "q8_0"])
def test_quantised_weights_are_multiplied_as_the_backend_of_the_product_does(form: str, folder: Path) -> None:
    """Each converts activations in its own way, so products on one of them must be that one's exactly.

    Attention that rounds otherwise may tip an int8 of an activation, hence three texts for the comparison.
    """
    path, tokens = built("llama-dense", folder, form), golden.read("llama-dense").tokens
    texts = [tokens, tokens[::-1], sorted(tokens)]

    def of_texts(backend: str, place: str = "") -> list[Floats]:
        with opened(path, backend, place) as executor:
            return [evaluate(executor, [text]) for text in texts]

    def logits(backend: str, place: str = "") -> Floats:
        return of_texts(backend, place)[0]

    cpus, (reference, *_) = of_texts("cpu"), of_texts("reference")
    cpu = cpus[0]
    apart = map(nmse, of_texts(BOTH, "reference:attention"), cpus)
    assert min(apart) <= 1e-9 < nmse(cpu, reference)
    np.testing.assert_array_equal(logits(BOTH, "reference:layers.*"), reference)
    for place in (LAYERS, "reference:blk.*.ffn_down.weight"):
        split = logits(BOTH, place)
        assert 1e-9 < nmse(split, cpu) <= 1e-3
        assert 1e-9 < nmse(split, reference) <= 1e-3


def test_alternating_layers_take_turns(tmp_path: Path) -> None:
    """Four layers by turns on two backends: four parts, and one stream that crosses three times."""
    model = discovery.architecture("llama").sample
    assert model is not None
    sample = model("llama")[0]
    layers = 4
    metadata = {**sample.metadata, "llama.block_count": layers}
    tensors = {name: shape for name, shape in sample.tensors.items() if not name.startswith("blk.")}
    for name, shape in sample.tensors.items():
        if name.startswith("blk.0."):
            tensors |= {name.replace("blk.0.", f"blk.{i}."): shape for i in range(layers)}
    kinds = {int: "UINT32", float: "FLOAT32", str: "STRING"}
    path = golden.write_gguf(
        tmp_path / "four.gguf",
        "llama",
        {key: (kinds[type(value)], value) for key, value in metadata.items()},
        {name: golden.weights(name, shape[::-1], 3) for name, shape in tensors.items()},
    )
    ids = [1, 2, 3, 4, 5]
    with opened(path, "reference") as executor:
        wanted = evaluate(executor, [ids])
    rules = "cpu:layers.0,reference:layers.1,cpu:layers.2,reference:layers.3"
    with opened(path, BOTH, rules) as executor:
        assert nmse(evaluate(executor, [ids[:3], [4], [5]]), wanted) <= LIMIT
        compiled = executor.compiled(1, 1)
        assert [part.backend for part in compiled.parts] == ["cpu", "reference"] * 2
        assert compiled.placement is not None
        stream = [c.name for c in compiled.placement.cut.copies if c.name.endswith("ffn_residual")]
        assert stream == [f"layers.{i}.ffn_residual" for i in range(layers - 1)]


# What an encoder writes a decoder reads, so both are on one backend: generate/test_encoder_decoder.py
ALONE = [model for model, (name, _) in MODELS.items() if discovery.architecture(name).encode is None]


@pytest.mark.parametrize("model", distinct(ALONE))
def test_every_kind_of_node_may_be_split_by_layers_and_by_op(model: str, tmp_path: Path) -> None:
    """By layers in a batch and in steps, by op in steps; goldens that are split by op have batches, too."""
    name, sample = MODELS[model]
    path = write_model(tmp_path / "tiny.gguf", name, sample)
    pieces = [list(range(1, 20)), [20], [21]]
    with opened(path, "reference") as executor:
        wanted = evaluate(executor, pieces)
        graph = executor.build(1, 1)
    layers = len({layer_of(node) for node in graph.nodes} - {None})  # looped ones, not those of drafts
    turns = ",".join(f"{('cpu', 'reference')[i % 2]}:layers.{i}" for i in range(layers))
    placed = set(graph.nodes) - constants(graph)
    ops = sorted({node.op.name for node in placed if node.op.family != "leaf" and not node.op.view})
    half = ",".join(f"reference:{op}" for op in ops if op not in ("mul_mat", "mul_mat_id", "get_rows"))
    with opened(path, BOTH, half) as executor:
        found = evaluate(
            executor, [[one] for one in pieces[0][:5]] if executor.architecture.causal else pieces
        )
        assert nmse(found, wanted[: len(found)]) <= LIMIT
        assert len(executor.compiled(1, 1).parts) > 2
    with opened(path, BOTH, turns) as executor:
        assert nmse(evaluate(executor, pieces), wanted) <= LIMIT
        compiled = executor.compiled(1, 1)
    assert compiled.placement is not None
    lacking = without_kernel(graph, ("cpu", "reference") * layers)
    reasons = [one.refused or "" for one in compiled.placement.fallbacks]
    assert {op for reason in reasons for op in refused_ops(reason)} == lacking
    assert len(compiled.parts) > layers if lacking else len(compiled.parts) == layers


@pytest.mark.parametrize("place", [LAYERS, "reference:attention"])
def test_rewind_and_two_sessions(place: str, folder: Path) -> None:
    tokens = golden.read("llama-dense").tokens
    with opened(built("llama-dense", folder), BOTH, place) as executor:
        texts = [OneText(executor) for _ in range(2)]

        def step(who: int, ids: list[int]) -> Floats:
            return texts[who].step(ids, all_logits=False)

        first = step(0, tokens[:8])
        other = step(1, tokens[4:8])
        again = step(0, tokens[8:9])
        texts[0].sequence.rewind(4)
        step(0, tokens[20:24])
        texts[0].sequence.rewind(4)
        np.testing.assert_array_equal(step(0, tokens[4:8]).shape, first.shape)
        np.testing.assert_allclose(step(0, tokens[8:9]), again, rtol=1e-4, atol=1e-5)
        texts[1].sequence.rewind(0)
        np.testing.assert_array_equal(step(1, tokens[4:8]), other)
        assert np.abs(other - first).max() > 1e-2


def test_the_state_is_split_by_layer_and_read_by_name(folder: Path) -> None:
    with opened(built("llama-dense", folder), BOTH, LAYERS) as executor:
        text = OneText(executor)
        state = text.state
        text.step([1, 2, 3], all_logits=False)
        assert state.n_bytes == 2 * 2 * 64 * 128 * 4
        for name in ("cache.0.k", "cache.1.v"):
            assert np.abs(state.array(name)[:3]).max() > 0
            assert np.abs(state.array(name)[3:]).max() == 0
        placement = executor.compiled(1, 1).placement
        assert placement is not None
        assert placement.states() == {
            "cache.0.k": "cpu", "cache.0.v": "cpu", "cache.1.k": "reference", "cache.1.v": "reference"
        }  # fmt: skip


def test_a_state_of_another_placement_is_refused(folder: Path) -> None:
    path = built("llama-dense", folder)
    with opened(path, BOTH, LAYERS) as one, opened(path, BOTH) as other:
        text = OneText(other)
        other.compiled(1, 1)
        with pytest.raises(BackendError, match="wanted a graph that compile_graph placed"):
            one.device.state(other.build(1, 1), {"C": 32})
        text.room.runner.state = OneText(one).state
        with pytest.raises(BackendError, match="made for another placement"):
            text.step([1], all_logits=False)
        assert text.sequence.n_computed == 0


@pytest.mark.parametrize("place", [LAYERS, "reference:attention"])
def test_kept_values_and_switched_off_fusions_work_on_parts(place: str, folder: Path) -> None:
    """Values of early parts too, which later parts of the device would write over."""
    path, tokens = built("llama-dense", folder), [3, 4, 5]
    patterns = ("layers.*.ffn_norm", "layers.0.silu", "embedding", "layers.0.attn_norm", "layers.0.q")
    found = []
    for backend, rules in (("reference", ""), (BOTH, place)):
        with opened(path, backend, rules, fuse="none") as executor:
            options = replace(executor.options, keep=patterns)
            found.append(OneText(executor, options=options).outputs(tokens))
            compiled = executor.compiled(32, 32, options)
            assert not compiled.fusions.applied
            inputs = {"tokens", "positions", "sequences", "cells", "block_table", "output_rows"}
            assert set(compiled.program.inputs) == inputs
    assert found[0].keys() == found[1].keys() >= {"logits", "value:layers.0.silu", "value:layers.1.ffn_norm"}
    for name, value in found[0].items():
        assert nmse(found[1][name], value) <= LIMIT


def test_the_parts_of_a_device_share_one_arena(folder: Path) -> None:
    with opened(built("llama-dense", folder), BOTH, "reference:attention") as executor:
        compiled = executor.compiled(32, 1)
        report = {one["backend"]: one for one in describe_placement(executor)["devices"]}
    for name in ("cpu", "reference"):
        plans = [part.plan for part in compiled.parts if part.backend == name]
        (arena,) = {plan.arena for plan in plans}
        assert arena is not None
        assert arena.n_bytes == max(plan.peak for plan in plans) < sum(plan.peak for plan in plans)
        told = report[name]["arena_prefill"]
        assert told["peak"] == arena.n_bytes
        assert told["waste"] == told["peak"] - told["lower_bound"] <= 0.1 * told["lower_bound"]
        if name == "cpu":
            bases = {program._arena.ctypes.data for program in compiled.program.programs[::2]}  # type: ignore
            assert len(bases) == 1


@pytest.mark.parametrize("place", [LAYERS, "reference:attention"])
def test_every_value_of_a_split_model_can_be_observed(place: str, folder: Path) -> None:
    """As `graphml compare` does: a graph with every value as an output, lowered without being placed anew."""
    path = built("llama-dense", folder)
    with opened(path, BOTH, place) as split, opened(path, "reference") as whole:
        steps = [observe(executor, [1, 2, 3, 4, 5]).steps for executor in (split, whole)]
        with (
            contextlib.closing(split.backend.open(1)) as fresh,
            pytest.raises(BackendError, match="must be placed first"),
        ):
            fresh.lower(steps[0][0].graph, split.compiled(1, 1).plan, {}, lambda *told: None)
    for mine, other in zip(*steps, strict=True):
        shared = mine.values.keys() & other.values.keys()
        assert {"logits", "layers.0.attention", "layers.0.ffn_residual"} <= shared
        for name in shared:
            if mine.values[name].dtype == np.float32:
                assert nmse(mine.values[name], other.values[name]) <= LIMIT, name


def test_one_backend_takes_the_plain_path(folder: Path) -> None:
    with opened(built("llama-dense", folder), "cpu") as executor:
        compiled = executor.compiled(1, 1)
        assert not isinstance(compiled.program, PartsProgram)
        assert (compiled.placement, compiled.parts) == (None, ())
        assert "place" not in compiled.seconds


def test_the_front_door_takes_several_backends(folder: Path) -> None:
    path = built("llama-dense", folder)
    with graphml.load(path, BOTH, 2, kv="f32", place=LAYERS) as split, graphml.load(path, "cpu", 2) as whole:
        ids = golden.read("llama-dense").tokens[:5]
        np.testing.assert_allclose(
            split.session(64).eval(ids), whole.session(64).eval(ids), rtol=1e-2, atol=1e-2
        )
