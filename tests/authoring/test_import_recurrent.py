"""State spaces and delta rules in imported files: recorded descriptions, and functions with torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.description import TracedInput, TracedModule
from graphml.authoring.importing.flattened_tokens import split_tokens
from graphml.authoring.importing.importing import import_description
from graphml.authoring.importing.joined_parameters import joined_parameters
from graphml.authoring.importing.proof import prove
from graphml.authoring.importing.recurrences import decayed_sum, delta_rule, ssm_scan
from graphml.ir.ops.linear_attention import gated_delta_net
from graphml.ir.ops.ssm import ssm_scan as scan_op
from tests.authoring.test_import_command import PYTHON, run, with_torch
from tests.import_records import described, write_folder

CLASSES = {
    "mamba": ('"ssm_scan_0",', "g.neg(g.exp(layer["),
    "mamba2": ('short_conv(g, layer, "mixer_conv1d", ', "config.ssm_state_size"),
    "falcon_h1": (
        '"conv_0")',
        '"conv_2")',
        "g.attend(",
    ),  # a convolution each of what has a factor of its own
    "nemotron_h": ('len(config.get("layers_block_type") or [])', "g.sqr(g.relu("),
    "recurrent_gemma": ("decayed_sum(g, ", "config.windows[layer.index]"),
    "qwen3_next": ("g.gated_delta_net(", "grouped=True", "g.attend("),
}
"""What the text of each has."""
PLAIN = Path(__file__).parents[1] / "data" / "imports" / "recurrent.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recurrent")


@pytest.mark.parametrize("name", CLASSES)
def test_a_recurrent_class_becomes_a_file_that_agrees_in_every_part(name: str, folder: Path) -> None:
    description = described(name, folder / f"{name}.traced")
    write_folder(description, folder / name)
    model = import_description(description, checkpoint(folder / name))
    file = folder / f"{name}.py"
    file.write_text(model.text)
    proof = prove(model, file, folder / name)
    assert proof.holds, [(line.what, line.tokens, line.nmse) for line in proof.lines]
    for text in CLASSES[name]:
        assert text in model.text, model.text


def test_one_parameter_of_parts_of_several_kinds_has_one_name(folder: Path) -> None:
    """Nemotron-H's layers have one norm and one part each."""
    description = described("nemotron_h", folder / "names.traced")
    write_folder(description, folder / "names")
    text = import_description(description, checkpoint(folder / "names")).text
    assert not ('layer["attn_norm"]' in text and 'layer["ffn_norm"]' in text)


def _flat_norms(description: TracedModule) -> list[str]:
    """The nodes whose rows are those of tokens and heads at once."""
    return [
        node.name
        for node in split_tokens(description).nodes.values()
        if node.path.endswith("linear_attn.norm") and any("*" in str(size) for size in node.shape or ())
    ]


def test_rows_of_tokens_and_heads_are_apart_where_the_tokens_come_first(folder: Path) -> None:
    assert not _flat_norms(described("qwen3_next", folder / "flat.traced"))

    def heads_first(found: dict[str, Any]) -> None:
        """The gates' heads before their tokens."""
        nodes = {node["name"]: node for node in found["nodes"]}
        for node in found["nodes"]:
            shape = node.get("shape") or ()
            if (
                node["op"] == "aten.view.default"
                and any("*" in str(size) for size in shape)
                and len(shape) == 2
            ):
                before = nodes[node["args"]["self"]["node"]]
                before["shape"] = [before["shape"][i] for i in (0, 2, 1, 3)]
                return

    assert _flat_norms(described("qwen3_next", folder / "turned.traced", heads_first))


@pytest.mark.parametrize("is_of_heads", [True, False])
def test_a_state_space_of_a_trace_is_the_op_of_graphml(is_of_heads: bool) -> None:
    rng = np.random.default_rng(0)
    n, width, state, groups, count = (4, 3, 5, 2, 9) if is_of_heads else (6, 1, 5, 1, 9)
    x, dt = rng.standard_normal((1, count, n, width)), rng.standard_normal((1, count, n))
    a, d = -rng.uniform(0.1, 2.0, (n, 1 if is_of_heads else state)), rng.standard_normal(n)
    b, c = rng.standard_normal((2, 1, count, groups, state))
    traced = ssm_scan({"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d})
    held = np.zeros((1, n if is_of_heads else 1, state, width if is_of_heads else n), np.float32)
    flat = [each[0].reshape(count, -1).astype(np.float32) for each in (x, dt, b, c)]
    token = [np.zeros(count, np.int32), np.arange(count, dtype=np.int32)]
    own = scan_op.reference(
        [held, flat[0], flat[1], a.astype(np.float32), flat[2], flat[3], d.astype(np.float32), *token], {}
    )
    np.testing.assert_allclose(traced[0].reshape(count, -1), own, rtol=1e-4, atol=1e-5)


def test_a_delta_rule_of_a_trace_is_the_op_of_graphml() -> None:
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 9, 2, 4)) / 2
    v, decay = rng.standard_normal((1, 9, 4, 3)), rng.uniform(0.5, 1.0, (1, 9, 4, 4))
    beta = rng.uniform(0.1, 1.0, (1, 9, 4))
    traced = delta_rule({"q": q, "k": k, "v": v, "decay": decay, "beta": beta, "scale": 0.5})
    flat = [each[0].astype(np.float32) for each in (q, k, v, decay, beta[..., None])]
    token = [np.zeros(9, np.int32), np.arange(9, dtype=np.int32)]
    held = np.zeros((1, 4, 3, 4), np.float32)
    own = gated_delta_net.reference([held, *flat, *token], {"scale": 0.5, "grouped": True})
    np.testing.assert_allclose(traced[0], own, rtol=1e-4, atol=1e-5)


def test_a_recurrence_of_each_element_is_a_sum_that_fades() -> None:
    rng = np.random.default_rng(2)
    x, decay = rng.standard_normal((1, 4, 3)), rng.uniform(0.1, 1.0, (1, 4, 3))
    y = decayed_sum({"x": x, "decay": decay})[0]
    np.testing.assert_allclose(y[0], x[0, 0])
    np.testing.assert_allclose(y[3], x[0, 3] + decay[0, 3] * (x[0, 2] + decay[0, 2] * y[1]))


def test_parameters_that_a_checkpoint_holds_in_parts_are_read_from_the_parts(folder: Path) -> None:
    """Three convolutions that the class joins; nothing is joined where a part is missing."""
    names = [f"model.layers.0.mixer.{name}_conv.weight" for name in "qkv"]
    parts = {name: np.full((2, 1, 4), i, np.float32) for i, name in enumerate(names)}
    whole = np.concatenate(list(parts.values()))
    leaf = TracedInput("parameter", "model.layers.0.mixer.conv1d.weight", whole.shape)
    description = replace(
        described("mamba2", folder / "parts.traced"), inputs={"p": leaf}, nodes={}, values={leaf.name: whole}
    )
    held = {name: partial(parts.__getitem__, name) for name in names}
    joined = joined_parameters(description, held)
    assert [each.name for each in joined.inputs.values()] == names
    assert joined.nodes["p"].args["tensors"] == [{"node": f"p_{i}"} for i in range(3)]
    del held[names[2]]
    assert joined_parameters(description, held) is description


@with_torch
def test_a_function_is_traced_as_an_op_only_if_it_is_what_its_name_says(tmp_path: Path) -> None:
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    options = ("-o", arch, "--weights", weights, "--python", PYTHON)
    code, told, error = run(f"module:{PLAIN}:scanned", *options)
    assert code == 0, error
    assert "every part agrees" in told
    assert "g.ssm_scan(" in arch.read_text()
    arch.unlink()
    weights.unlink()
    code, _, error = run(f"module:{PLAIN}:slowed", *options)
    assert code == 2
    assert "mamba_selective_scan computes otherwise than its op: NMSE " in error
    assert not arch.exists()
