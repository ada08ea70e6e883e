"""What `graphml import` refuses, from recorded descriptions: op, module path and source line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.authoring.importing import masks
from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.importing import import_description
from graphml.errors import ArchitectureError
from tests.import_records import described, write_folder

REFUSED = {
    "phi3-longrope": r"where.* in model\.rotary_emb \(modeling_phi3\.py:394\): chooses by the length",
    "doge": r" in model\.layers\.0\.self_attn \(modeling_doge\.py:304\): .*depends on values of tokens",
    "plain-g": r"scaled_dot_product_attention.* in blocks\.0 \(plain\.py:\d+\): a bias that does not grow",
    "rwkv": r" in rwkv\.embeddings \(modeling_rwkv\.py:\d+\): was traced at one length alone, 29",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refused")


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_is_not_known_is_refused_by_op_module_and_line(name: str, folder: Path) -> None:
    description = described(name, folder / f"{name}.refused")
    if description.config:
        write_folder(description, folder / name)
    held = checkpoint(folder / name if description.config else None)
    with pytest.raises(ArchitectureError, match=REFUSED[name]) as error:
        import_description(description, held)
    assert "\n" not in str(error.value)


def test_a_parameter_without_influence_is_refused(folder: Path) -> None:
    """Read by an op that the logits of this length do not need: a file could not know what it does."""

    def change(found: dict[str, Any]) -> None:
        node = next(one for one in found["nodes"] if one["op"] == "aten.silu.default")
        reads = next(name for name, one in found["inputs"].items() if one.get("kind") == "parameter")
        found["inputs"]["p_more"] = {**found["inputs"][reads], "name": "model.layers.0.mlp.more"}
        own = {"input": node["args"]["self"], "weight": {"node": "p_more"}}
        found["nodes"].append({**node, "name": "unread", "op": "aten.linear.default", "args": own})

    description = described("llama", folder / "unread", change)
    write_folder(description, folder / "unread-checkpoint")
    wanted = r"linear.* in model\.layers\.0\.mlp.*model\.layers\.0\.mlp\.more has no influence"
    with pytest.raises(ArchitectureError, match=wanted):
        import_description(description, checkpoint(folder / "unread-checkpoint"))


def test_what_a_checkpoint_does_not_have_as_it_is_used_is_refused(folder: Path) -> None:
    """Only the GGUF of a plain module holds what is computed from parameters."""

    def computed(found: dict[str, Any]) -> None:
        norm = next(one for one in found["nodes"] if "layernorm_weight" in str(one["args"]))
        weight = norm["args"]["self"]
        made = {**norm, "name": "computed", "op": "aten.exp.default", "args": {"self": dict(weight)}}
        found["nodes"].insert(found["nodes"].index(norm), {**made, "shape": [128]})
        weight["node"] = "computed"

    description = described("llama", folder / "computed", computed)
    write_folder(description, folder / "computed-checkpoint")
    wanted = r"input_layernorm.*norm\.weight is computed from .* that no change of tensors does; the GGUF"
    with pytest.raises(ArchitectureError, match=wanted):
        import_description(description, checkpoint(folder / "computed-checkpoint"))


def test_a_parameter_that_is_spread_over_tokens_is_one_weight(folder: Path) -> None:
    """Where it meets tokens number by number; elsewhere it is refused by op, module and line."""

    def spread(found: dict[str, Any]) -> None:
        norm = next(one for one in found["nodes"] if "layernorm_weight" in str(one["args"]))
        size = next(one for one in found["nodes"] if "sym_size" in one["op"])["name"]
        arguments = {"self": norm["args"]["self"], "size": [1, {"node": size}, 128]}
        shape = next(one for one in found["nodes"] if one["op"] == "aten.embedding.default")["shape"]
        made = {**norm, "name": "spread", "op": "aten.expand.default", "args": arguments, "shape": shape}
        found["nodes"].insert(found["nodes"].index(norm), made)
        norm["args"] = {**norm["args"], "self": {"node": "spread"}}

    description = described("llama", folder / "spread", spread)
    write_folder(description, folder / "spread-checkpoint")
    held = checkpoint(folder / "spread-checkpoint")
    assert 'layer["attn_norm"]' in import_description(description, held).text

    def risen(found: dict[str, Any]) -> None:
        spread(found)
        norm = next(one for one in found["nodes"] if {"node": "spread"} in one["args"].values())
        silu = {**norm, "name": "risen", "op": "aten.silu.default", "args": {"self": {"node": "spread"}}}
        found["nodes"].insert(found["nodes"].index(norm), silu)
        norm["args"] = {**norm["args"], "self": {"node": "risen"}}

    description = described("llama", folder / "risen", risen)
    with pytest.raises(ArchitectureError, match=r"silu.* in model\.layers\.0\.input_layernorm.*spreads a"):
        import_description(description, held)


@pytest.mark.parametrize("by", ["slice", "index"])
def test_a_window_in_a_table_that_a_module_holds_is_seen(
    by: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is longer than the traced text, and no number in the graph says it."""
    size, window = 350, 300
    distance = np.arange(size)[:, None] - np.arange(size)
    seen = (distance >= 0) & (distance < window)

    def held(found: dict[str, Any]) -> None:
        found["inputs"]["b_seen"] = {"kind": "constant", "name": "seen", "shape": [size, size]}
        found["constants"]["seen"] = ["bool", [size, size], seen.reshape(-1).tolist()]
        nodes = {one["name"]: one for one in found["nodes"]}
        length = {"node": next(name for name, one in nodes.items() if "sym_size" in one["op"])}
        for mask in [one for one in found["nodes"] if one["op"] == "aten.__and__.Tensor"]:
            at = {"node": nodes[mask["args"]["other"]["node"]]["args"]["self"]["node"]}  # distances
            at = nodes[at["node"]]["args"]["other"]  # positions
            if by == "slice":
                first = {"self": {"node": "b_seen"}, "dim": 0, "start": 0, "end": length}
                second, op = {"dim": 1, "start": 0, "end": length}, "aten.slice.Tensor"
            else:
                first = {"self": {"node": "b_seen"}, "indices": [at]}
                second, op = {"indices": [None, at]}, "aten.index.Tensor"
            rows = {**mask, "name": f"{mask['name']}_rows", "op": op, "args": first}
            rows["shape"] = [mask["shape"][0], size]
            found["nodes"].insert(found["nodes"].index(mask), rows)
            mask |= {"op": op, "args": {"self": {"node": rows["name"]}, **second}}

    description = described("plain-d", folder / f"table-{by}", held)
    assert import_description(description, {}).keys["attention.sliding_window"] == window
    monkeypatch.setattr(masks, "LARGEST", 100)
    with pytest.raises(
        ArchitectureError, match=r"in blocks\.0 .*a table with a window of more than 100 tokens"
    ):
        import_description(description, {})


def replaced(op: str, by: str, **arguments: Any) -> Any:
    def change(found: dict[str, Any]) -> None:
        one = next(one for one in found["nodes"] if one["op"] == op)
        one["op"] = by
        one["args"] = {"self": one["args"]["self"], **arguments}

    return change


@pytest.mark.parametrize(
    ("op", "by", "arguments"),
    [
        ("aten.silu.default", "aten.cumprod.default", {"dim": 1}),
        ("aten.silu.default", "aten.mean.dim", {"dim": [1], "keepdim": True}),
        ("aten.silu.default", "aten.nonsense.default", {}),
    ],
)
def test_what_mixes_tokens_is_refused_by_op_module_and_line(
    op: str, by: str, arguments: dict[str, Any], folder: Path
) -> None:
    description = described("llama", folder / "mixing", replaced(op, by, **arguments))
    write_folder(description, folder / "llama")
    with pytest.raises(ArchitectureError) as error:
        import_description(description, checkpoint(folder / "llama"))
    assert by in str(error.value)
    assert "layers.0.mlp" in str(error.value)
    assert "activations.py:" in str(error.value)


def test_a_damaged_description_is_one_error(folder: Path) -> None:
    def change(found: dict[str, Any]) -> None:
        found["nodes"][5]["args"]["self"] = {"node": "nonsense"}

    with pytest.raises(ArchitectureError, match="reads 'nonsense', which is not before it"):
        described("llama", folder / "damaged", change)
