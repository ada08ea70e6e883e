"""Types of tensors by file type, against `llama-quantize --dry-run` of llama.cpp 0.5.0 for six models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.errors import UsageError

MODELS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "quantize_plans.json").read_text(encoding="utf-8")
)


def expanded(values: Mapping[str, Any], n_layer: int) -> dict[str, Any]:
    """`blk.*.NAME` as a name for each layer."""
    every: dict[str, Any] = {}
    for name, value in values.items():
        numbers = range(n_layer) if "*" in name else [0]
        every |= {name.replace("*", str(i)): value for i in numbers}
    return every


def wanted(types: Mapping[str, Any], n_layer: int) -> dict[str, str]:
    plan: dict[str, str] = {}
    for name, kinds in expanded(types, n_layer).items():
        number = int(name.split(".")[1]) if name.startswith("blk.") else 0
        of_layers = {kinds: [number]} if isinstance(kinds, str) else kinds
        (plan[name],) = (kind for kind, layers in of_layers.items() if number in layers)
    return plan


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", ["as GGUF", "as NumPy"])
def test_types_are_those_of_llama_quantize(name: str, order: str) -> None:
    model = MODELS[name]
    n_layer = model["shape"]["layers"]
    shapes = {key: json.loads(text) for key, text in model["tensors"].items()}
    tensors = expanded(shapes if order == "as GGUF" else {k: v[::-1] for k, v in shapes.items()}, n_layer)
    n_compared = 0
    for kind, by_matrix in model["filetypes"].items():
        for imatrix in (False, True):
            said = by_matrix if "error" in by_matrix else by_matrix["imatrix" if imatrix else "plain"]
            said = by_matrix["plain"] if said == "same as plain" else said
            if "error" in said:
                with pytest.raises(UsageError, match=r"rows of \d+ are no multiple of 128, which Q1_0 wants"):
                    graphml.quantize_plan(model["metadata"], tensors, kind, imatrix)
                continue
            plan = graphml.quantize_plan(model["metadata"], tensors, kind, imatrix=imatrix)
            expected = wanted(said["types"], n_layer)
            assert {key: plan[key] for key in expected} == expected, (kind, imatrix)
            assert {plan[key] for key in tensors.keys() - expected.keys()} <= {"F32"}
            n_compared += len(expected)
    assert n_compared > 1000


def test_what_makes_no_plan_is_refused() -> None:
    model = MODELS["llama-22"]
    tensors = expanded({key: json.loads(text) for key, text in model["tensors"].items()}, 22)
    with pytest.raises(UsageError, match=r"wanted one of .*; got 'Q9'"):
        graphml.quantize_plan(model["metadata"], tensors, "Q9")
    with pytest.raises(UsageError, match=r"metadata: wanted general\.architecture"):
        graphml.quantize_plan({}, tensors, "Q4_K_M")
    with pytest.raises(UsageError, match=r"llama\.block_count: wanted a whole number; got None"):
        graphml.quantize_plan({"general.architecture": "llama"}, tensors, "Q4_K_M")
    shapes: list[Any] = [(-1, 256), "256", (2.5, 256), 256]
    for shape in shapes:
        with pytest.raises(UsageError, match=r"tensors: token_embd\.weight: wanted a shape of whole numbers"):
            graphml.quantize_plan(model["metadata"], {"token_embd.weight": shape}, "Q4_K_M")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "IQ4_NL", "MXFP4_MOE", "Q2_0", "Q4_K_M", "NVFP4", "Q1_0"])
def test_rows_that_no_block_divides_are_f16_as_in_llama_quantize(kind: str) -> None:
    """llama-quantize 0.5.0 wrote stories260K, whose rows have 64 and 172 columns, so; or refused it."""
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    tensors = {"token_embd.weight": [512, 64], "blk.0.ffn_up.weight": [192, 64]}
    narrow = "blk.0.ffn_down.weight"
    if kind in ("NVFP4", "Q1_0"):
        with pytest.raises(UsageError, match=rf"{narrow}: rows of 172 are no multiple of \d+, which {kind}"):
            graphml.quantize_plan(metadata, {narrow: [64, 172]}, kind)
        return
    plan = graphml.quantize_plan(metadata, {**tensors, narrow: [64, 172]}, kind)
    wanted = {"MXFP4_MOE": "Q8_0", "Q4_K_M": "Q5_0"}.get(kind, kind)
    assert (plan[narrow], plan["blk.0.ffn_up.weight"]) == ("F16", wanted)
