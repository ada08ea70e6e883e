"""Imports of earlier tokens, several softmax maps, values of one layer; what looks like them is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.authoring.importing import attention
from graphml.authoring.importing.entries import experts
from graphml.authoring.importing.importing import Imported, import_description
from graphml.authoring.importing.proof import tokens_alone, write_weights
from graphml.errors import ArchitectureError
from graphml.weights import open_model
from tests.import_records import described

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ideas")


def imported(name: str, folder: Path, change: Change | None = None) -> Imported:
    return import_description(described(name, folder / name, change), {})


def nodes_of(document: dict[str, Any], op: str) -> list[dict[str, Any]]:
    return [node for node in document["nodes"] if node["op"] == op]


def with_arguments(op: str, at: int = 0, **arguments: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        nodes_of(document, op)[at]["args"] |= arguments

    return change


def inserted(document: dict[str, Any], before: dict[str, Any], op: str, **arguments: Any) -> dict[str, Any]:
    """A node on the first operand of another, which reads it instead."""
    key = next(key for key in ("self", "input", "query") if key in before["args"])
    source = before["args"][key]
    shape = next(node["shape"] for node in document["nodes"] if node["name"] == source["node"])
    node = {**before, "name": f"new_{before['name']}", "op": op, "args": {"self": source, **arguments}}
    node["shape"] = shape
    document["nodes"].insert(document["nodes"].index(before), node)
    before["args"][key] = {"node": node["name"]}
    return node


def test_tokens_before_are_kept_as_states_of_short_convolutions(folder: Path) -> None:
    text = imported("plain-past", folder).text
    assert 'short_conv(g, layer, "deep", h_TD, layer.index, "conv_0", apart=2)' in text
    assert "remainder(\n" in text
    assert 'shifted(g, g.reshape(g.cast(g.tokens, "f32"), 1), 1, 0, "before_shift_0")' in text
    assert "g.less(" in text  # the first token is not smeared


PADDED = "aten.pad.default"
ASTRAY: dict[str, tuple[Change, str]] = {
    "reads the next token": (with_arguments("aten.conv1d.default", padding=[2]), "that do not follow"),
    "another start": (with_arguments(PADDED, at=0, value=1.0), "pads with other values"),
    "its own first token": (with_arguments(PADDED, at=1, mode="replicate"), "pads with other values"),
    "a token ahead": (with_arguments(PADDED, at=2, pad=[0, 0, -1, 1]), "tokens of a text that do not follow"),
    "some of the tokens": (with_arguments("aten.conv1d.default", stride=[2]), "of stride 2"),
    "hashes that are rounded": (with_arguments("aten.mul.Tensor", other=1_000_003), "float32 has each one"),
}


@pytest.mark.parametrize("name", ASTRAY)
def test_other_tokens_than_those_before_are_refused_with_their_place(name: str, folder: Path) -> None:
    change, wanted = ASTRAY[name]
    with pytest.raises(ArchitectureError, match=rf"aten\..* \(ideas\.py:\d+\): .*{wanted}"):
        imported("plain-past", folder, change)


def test_a_text_that_is_rolled_is_refused(folder: Path) -> None:
    """Its first token would read the last one."""

    def rolled(document: dict[str, Any]) -> None:
        inserted(document, nodes_of(document, "aten.linear.default")[1], "aten.roll.default",
                 shifts=[1], dims=[1])  # fmt: skip

    with pytest.raises(ArchitectureError, match=r"in blocks\.0.*tokens of a text that do not follow"):
        imported("plain-past", folder, rolled)


def test_shifts_are_given_where_one_token_is_changed(folder: Path) -> None:
    """Without that the token after it would change as well; with that none may."""
    past = imported("plain-past", folder)
    ids = np.arange(9)
    assert past.neighbours
    assert tokens_alone(past, ids) == 0.0
    with pytest.raises(ArchitectureError, match="changes with another token"):
        tokens_alone(replace(past, neighbours=frozenset()), ids)


def test_maps_become_attentions_with_caches_of_their_own(folder: Path) -> None:
    text = imported("plain-maps", folder).text
    assert "layer.index + config.n_layer, config.scale)" in text
    assert "config.factors[layer.index]" in text


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten.roll.default", {"shifts": [1], "dims": [-1]}),
        ("aten.transpose.int", {"dim0": -1, "dim1": -2}),
        ("aten.relu.default", {}),
        ("aten.flip.default", {"dims": [-2]}),
    ],
)
def test_maps_that_are_changed_otherwise_are_refused(
    op: str, arguments: dict[str, Any], folder: Path
) -> None:
    def changed(document: dict[str, Any]) -> None:
        softmax = nodes_of(document, "aten.softmax.int")[0]["name"]
        reader = next(node for node in document["nodes"] if node["args"].get("self") == {"node": softmax})
        inserted(document, reader, op, **arguments)

    with pytest.raises(ArchitectureError, match=r"aten\..* in blocks\.0.* \(ideas\.py:\d+\): .*weights"):
        imported("plain-maps", folder, changed)


def test_weights_of_pairs_without_a_softmax_are_linear_attention(folder: Path) -> None:
    text = imported("plain-linear", folder).text
    assert "constant_rows(g, [[0.75], [0.875], [0.9375], [0.96875]])" in text
    assert text.count("g.linear_attention(") == 3  # one for the sums of the weights
    assert '(g.heads(g.exp(g.mul(h5_TD, layer["neg_rate"])), 4),)' in text
    assert "running_sum(g, h4_TD, layer.index + 3 * config.n_layer)" in text


NO_DECAYS: dict[str, tuple[Change, str]] = {
    "later tokens": (with_arguments("aten.where.ScalarOther", other=1.0), "no power of their distance"),
    "a decay that ends": (with_arguments("aten.clamp.default", max=90), "no power of their distance"),
    "later tokens before exp": (with_arguments("aten.masked_fill.Scalar", value=0.0), "later tokens of exp"),
    "an uneven mask": (with_arguments("aten.lt.Scalar", other=-1), "see later tokens"),
    "a window": (with_arguments("aten.lt.Scalar", other=3000), "too long to know"),
    "sums over heads": (with_arguments("aten.cumsum.default", dim=1), "no running sums"),
    "sums over queries": (with_arguments("aten.sum.dim_IntList", dim=[-2]), "that of the keys"),
    "keys for queries": (with_arguments("aten.einsum.default", 1, equation="bnkq,bnkh->bqnh"), "weights"),
}


@pytest.mark.parametrize("name", NO_DECAYS)
def test_other_weights_of_pairs_are_refused_with_their_place(name: str, folder: Path) -> None:
    change, wanted = NO_DECAYS[name]
    with pytest.raises(ArchitectureError, match=rf"aten\..* \(ideas\.py:\d+\): .*{wanted}"):
        imported("plain-linear", folder, change)


def test_products_of_two_values_of_each_token_and_streams(folder: Path) -> None:
    """Residual streams that a parameter and the tokens mix, factors of queries, a matrix for each head."""
    text = imported("plain-streams", folder).text
    assert text.count("g.mul_mat(") == 4
    assert text.count("g.per_head(") == 2
    assert imported("plain-streams", folder).keys["embedding_length"] == 32


def test_layers_that_are_called_again_share_their_tensors(folder: Path) -> None:
    model = imported("plain-looped", folder)
    assert "for layer in weights.layers([*range(config.n_layer // 3)] * 3):" in model.text
    assert "weights.linear(" in model.text.partition("for layer in")[2]  # between the rounds
    assert [f'weights["round{more}"]' in model.text for more in ("", "_2", "_3")] == [True] * 3
    assert model.keys["block_count"] == 6
    write_weights(model, folder / "looped.gguf", random=True)
    with open_model(folder / "looped.gguf") as file:
        assert {name.split(".")[1] for name in file.tensors if name.startswith("blk.")} == {"0", "1"}


def test_layers_of_which_one_is_called_again_are_refused(folder: Path) -> None:
    def once(document: dict[str, Any]) -> None:
        """Without the last block's third call."""
        calls = [node for node in document["nodes"] if node["path"].startswith("blocks.1")]
        first, last = calls[2 * len(calls) // 3], calls[-1]
        entering = next(value for value in first["args"].values() if isinstance(value, dict))
        for node in document["nodes"]:
            for key, value in node["args"].items():
                if value == {"node": last["name"]}:
                    node["args"][key] = entering

    with pytest.raises(ArchitectureError, match=r"some of the 2 modules of layers are called more often"):
        imported("plain-looped", folder, once)


def test_a_layer_whose_values_others_read_is_a_kind_of_its_own(folder: Path) -> None:
    text = imported("plain-first", folder).text
    assert text.count("kept_TNH = ") == 1
    assert text.index("kept_TNH = ") < text.index("g.mul(kept_TNH, ")


def test_a_head_that_all_heads_share_is_repeated_and_a_router_may_have_a_bias(folder: Path) -> None:
    latent = imported("plain-latent", folder)
    assert "g.repeat(g.rope(" in latent.text
    assert "blk.{}.ffn_gate_inp.bias" in {place.name for place in latent.tensors}


def limited(at: str, **limits: float) -> Change:
    """A clamp before a node whose name begins so."""

    def change(document: dict[str, Any]) -> None:
        node = next(node for node in document["nodes"] if node["op"].startswith(at))
        inserted(document, node, "aten.clamp.default", **limits)

    return change


def test_scores_that_only_large_values_limit_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = limited("aten.softmax", max=12.0)
    with pytest.raises(ArchitectureError, match=r"softmax.* in blocks\.0.*agrees with no `attend`"):
        imported("plain-a", folder, change)
    monkeypatch.setattr(attention, "SIZES", (1.0,))
    assert imported("plain-a", folder, change).text


@pytest.mark.parametrize("limit", [7.0, 6.5])
def test_limits_of_experts_that_only_large_values_reach_are_seen(
    limit: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """silu(gate.clamp(max=7)) * up.clamp(-7, 7); where the two are not the same it is refused."""

    def change(document: dict[str, Any]) -> None:
        for silu in nodes_of(document, "aten.silu.default"):
            product = next(node for node in nodes_of(document, "aten.mul.Tensor")
                           if {"node": silu["name"]} in node["args"].values())  # fmt: skip
            if product["args"]["self"] == {"node": silu["name"]}:
                product["args"] = {"self": product["args"]["other"], "other": product["args"]["self"]}
            inserted(document, product, "aten.clamp.default", min=-limit, max=limit)
            inserted(document, silu, "aten.clamp.default", max=7.0)

    if limit == 7.0:
        assert 'g.clamp(gate, float("-inf"), 7.0)' in imported("plain-m", folder, change).text
        return
    with pytest.raises(ArchitectureError, match=r"topk.* in blocks\.0 \(plain\.py:\d+\): has no counterpart"):
        imported("plain-m", folder, change)
    monkeypatch.setattr(experts, "LARGE", 1.0)
    assert "experts" in imported("plain-m", folder, change).text


def test_whole_powers_and_sums_of_three_operands_are_chains(folder: Path) -> None:
    text = imported("plain-powers", folder).text
    assert "g.mul(g.sqr(" in text
    with pytest.raises(ArchitectureError, match=r"a power of 9"):
        imported("plain-powers", folder, with_arguments("aten.pow.Tensor_Scalar", exponent=9))
    # A dimension that one operand alone has would be summed before it is multiplied.
    changed = with_arguments("aten.einsum.default", 1, equation="btef,efd,bte->btf")
    with pytest.raises(ArchitectureError, match="wanted sums over dimensions of both operands alone"):
        imported("plain-powers", folder, changed)
