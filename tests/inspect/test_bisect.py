"""Bisecting: every planted fault is named, and nothing is where nothing is wrong."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from graphml_cpu import lowering
from graphml_cpu.lowering.step import AddressTable, Argument, HostConstant, KernelCall

from graphml.backend import Plan
from graphml.compiler import compile as compiling
from graphml.compiler.options import CompileOptions
from graphml.errors import GraphError
from graphml.inspect.bisect import repro
from graphml.inspect.bisect.bisect import bisect
from graphml.inspect.bisect.inside import look_inside, where
from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.observe import observe
from graphml.ir.node import Node
from graphml.ir.op import Term
from graphml.passes.plan import plan_memory
from tests import golden
from tests.inspect import faults
from tests.inspect.bisected import IDS, NONE, Opened, first, opened, stories, without_products_of_gates

Fault = Callable[[], AbstractContextManager[None]]


def quantised(name: str, folder: Path, form: str | None) -> Path:
    one = golden.read(name)
    tensors = {tensor: golden.weights(tensor, sizes, one.seed) for tensor, sizes in one.tensors.items()}
    return golden.write_gguf(folder / "m.gguf", one.architecture, one.metadata, tensors, form)


@pytest.mark.parametrize("form", [None, "q4_1", "q8_0"])
@pytest.mark.parametrize("name", golden.FEW)
def test_nothing_is_found_where_nothing_is_wrong(name: str, form: str | None, tmp_path: Path) -> None:
    with opened(quantised(name, tmp_path, form), kv="f16") as both:
        found = both.bisect(ids=golden.read(name).tokens[:8])
    assert not found.findings
    steps = ["prefill", "decode", "prefill with extreme values", "decode with extreme values"]
    assert list(dict.fromkeys(one.step for one in found.readings)) == steps
    assert any(one.meaning is not None for one in found.readings)


def test_an_output_may_be_called_like_another_node(tmp_path: Path) -> None:
    """Gemma 2's graph has a node `logits`, whose values are capped to become the output `logits`."""
    with opened(golden.build(golden.read("gemma2-dense"), tmp_path / "m.gguf")) as both:
        assert not both.bisect(ids=golden.read("gemma2-dense").tokens[:8]).findings


@pytest.mark.parametrize("other", ["cpu", "reference"])
def test_nothing_is_found_between_fusion_settings(other: str) -> None:
    with opened(stories(), "cpu", other) as both:
        assert not both.bisect().findings
        assert not both.bisect(CompileOptions(fuse="-swiglu")).findings


def only_for_one_token(
    change: Callable[[Node, list[KernelCall]], list[KernelCall]],
) -> Callable[..., list[KernelCall]]:
    def chosen(node: Node, steps: list[KernelCall]) -> list[KernelCall]:
        return change(node, steps) if getattr(node.shape[0], "bound", 1) == 1 else steps

    return chosen


def one_row_further(node: Node) -> Argument:
    """The table of a lookup of weights, each row where the one before it stood."""
    table = node.inputs[0]
    if table.op.name != "weight":
        return table
    return HostConstant(lambda weights: np.roll(weights[table.name], -1, 0))


def keys_and_values_swapped(node: Node) -> Argument:
    (step,) = lowering.table.__wrapped__()[node.op.name].lower(node, 1)
    table = step.arguments["table"]
    assert isinstance(table, AddressTable)
    q, k, v = table.rows
    return AddressTable((q, (v[0], *k[1:]), (k[0], *v[1:])))


# What is broken; the step, node and op that must be named.
KERNELS: dict[str, tuple[Fault, str, str, str]] = {
    "rope pairs neighbours where it should pair halves": (
        lambda: faults.wrong_lowering("rope", faults.as_if(mode="neox")),
        "prefill", "layers.0.q_rope", "rope",
    ),
    "eps of a norm": (
        lambda: faults.wrong_lowering("rms_norm_mul", faults.with_arguments(eps=1e-3)),
        "prefill", "layers.0.attn_norm", "rms_norm_mul",
    ),
    "every row gets the first row of up": (
        lambda: faults.wrong_lowering("swiglu", faults.with_arguments(b_stride=0)),
        "prefill", "layers.0.swiglu", "swiglu",
    ),
    "operands swapped": (
        lambda: faults.wrong_lowering(
            "swiglu", faults.with_arguments(a=lambda n: n.inputs[1], b=lambda n: n.inputs[0])
        ),
        "prefill", "layers.0.swiglu", "swiglu",
    ),
    "another gate": (
        lambda: faults.wrong_lowering(
            "swiglu",
            lambda node, steps: [
                replace(one, kernel=replace(one.kernel, name="glu-geglu", arguments=("geglu",)))
                for one in steps
            ],
        ),
        "prefill", "layers.0.swiglu", "swiglu",
    ),
    "gate and up swapped in one kernel": (
        lambda: faults.wrong_lowering(
            "mul_mat_glu", faults.with_arguments(gate=lambda n: n.inputs[1], up=lambda n: n.inputs[0])
        ),
        "prefill", "layers.0.swiglu", "mul_mat_glu",
    ),
    "keys and values swapped among products of one input": (
        lambda: faults.wrong_lowering("linears", faults.with_arguments(table=keys_and_values_swapped)),
        "prefill", "layers.0.k", "linears",
    ),
    "off by one row": (
        lambda: faults.wrong_lowering("get_rows", faults.with_arguments(table=one_row_further)),
        "prefill", "embedding", "get_rows",
    ),
    "a window where there is none": (
        lambda: faults.wrong_lowering("attention", faults.with_arguments(window=3)),
        "prefill", "layers.0.attention", "attention",
    ),
    "scale of attention, one token alone": (
        lambda: faults.wrong_lowering(
            "attention", only_for_one_token(faults.with_arguments(scale=0.3))
        ),
        "decode", "layers.0.attention", "attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_kernel_is_named(name: str, tmp_path: Path) -> None:
    fault, step, node, op = KERNELS[name]
    with fault(), opened(stories(), **without_products_of_gates(op)) as both:
        found = both.bisect()
        one = first(found)
        assert (one.kind, one.step, one.node.name, one.made_by.name) == ("kernel", step, node, op)
        assert {wrong.made_by.name for wrong in found.findings} == {op}
        script, arrays = repro.write(
            repro.ReproCase(one.graph, one.other, one.arrays), ("cpu", "reference"), one.limit, name, tmp_path
        )
        assert exit_code(script) == 1
    assert exit_code(script) == 0
    assert arrays.stat().st_size < (20_000 if op in ("linears", "mul_mat_glu") else 10_000)  # more weights
    inherited = [reading for reading in found.readings if reading.verdict == "inherited"]
    assert inherited
    assert found.readings.index(inherited[0]) > [one.node.name for one in found.readings].index(node)


def exit_code(script: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


# Fusions that are wrong; the fusion that must be named, and where.
def wrong_eps(table: Any) -> Any:
    right = table["rms_norm_mul"]
    return {"rms_norm_mul": replace(right, attributes=lambda match: {"eps": 1e-3})}


def bound_wrongly(table: Any) -> Any:
    """The pattern binds its variables the wrong way."""
    right = table["swiglu"]
    term = right.patterns()[0][0]
    assert isinstance(term, Term)
    silu = term.arguments[0].op
    return {"swiglu": replace(right, find=lambda gate, up: term.op(silu(up), gate))}


FUSIONS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "operands bound the wrong way": (bound_wrongly, "swiglu", "layers.0.swiglu"),
    "its decomposition means another thing": (
        faults.wrong_decomposition("swiglu", faults.up_and_gate), "swiglu", "layers.0.swiglu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSIONS)
def test_a_wrong_fusion_is_named(name: str, tmp_path: Path) -> None:
    change, fusion, node = FUSIONS[name]
    with faults.fusions_as(change), opened(stories(), **without_products_of_gates(fusion)) as both:
        one = first(both.bisect())
        assert (one.kind, one.step, one.node.name) == ("rewrite", "prefill", node)
        assert one.applied is not None
        assert one.applied.fusion == fusion
        assert node in one.applied.covered
        case = repro.ReproCase(one.graph, one.other, one.arrays)
        script, _ = repro.write(case, ("reference", "reference"), one.limit, name, tmp_path)
        assert exit_code(script) == 1


def test_a_wrong_fusion_is_named_on_one_backend_alone() -> None:
    switches = without_products_of_gates("swiglu")
    with faults.fusions_as(bound_wrongly), opened(stories(), "cpu", "cpu", **switches) as both:
        one = first(both.bisect())
        assert (one.kind, one.node.name) == ("rewrite", "layers.0.swiglu")


def test_a_fusion_that_loses_an_attribute_is_not_made() -> None:
    with faults.fusions_as(wrong_eps), opened(stories()) as both:
        found = both.bisect()
        assert not found.findings
        assert "rms_norm_mul" not in both.a.compiled(1, 1).fusions.counts


def test_a_wrong_fused_kernel_is_told_from_a_wrong_fusion_on_one_backend() -> None:
    """Its parts, run one by one, are right and mean what stood there before."""
    fault = faults.wrong_lowering("rms_norm_mul", faults.with_arguments(eps=1e-3))
    with fault, opened(stories(), "cpu", "cpu") as both:
        one = first(both.bisect())
    assert (one.kind, one.node.name) == ("kernel", "layers.0.attn_norm")
    assert one.inside is not None
    assert [part.node.op.name for part in one.inside.parts] == ["rms_norm", "mul"]
    assert not any(part.wrong for part in one.inside.parts)


def test_a_part_that_is_wrong_too_is_named() -> None:
    """The norm's kernel is wrong, alone and within the fused one."""
    with (
        faults.wrong_lowering("rms_norm_mul", faults.with_arguments(eps=1e-3)),
        faults.wrong_lowering("rms_norm", faults.with_arguments(eps=1e-3)),
        opened(stories()) as both,
    ):
        one = first(both.bisect())
    assert one.inside is not None
    assert [(part.node.op.name, part.wrong) for part in one.inside.parts] == [
        ("rms_norm", True), ("mul", False),
    ]  # fmt: skip


def test_a_missing_end_is_seen() -> None:
    """A product that forgets its residual gives the value of the product's node."""

    def forget(node: Node, steps: list[KernelCall]) -> list[KernelCall]:
        return [
            replace(one, arguments={**one.arguments, "residual": 0}) if node.attributes["residual"] else one
            for one in steps
        ]

    with faults.wrong_lowering("linear", forget), opened(stories()) as both:
        one = first(both.bisect())
    assert (one.kind, one.node.name) == ("kernel", "layers.0.attn_residual")
    assert one.inside is not None
    assert any("(mul_mat): what follows that is missing" in hint for hint in one.inside.hints)


@pytest.mark.parametrize("form", ["q4_1", "q8_0"])
def test_quantised_weights(form: str, tmp_path: Path) -> None:
    """Int8 rounding moves every value, and the wrong one is named all the same."""
    fault = faults.wrong_lowering("rope", faults.as_if(mode="neox"))
    path = quantised("llama-dense", tmp_path, form)
    with fault, opened(path) as both:
        found = both.bisect(ids=golden.read("llama-dense").tokens[:8])
    assert first(found).node.name == "layers.0.q_rope"
    assert {one.node.op.name for one in found.findings} == {"rope"}


def test_a_wrong_plan_is_refused_and_would_show_only_where_nobody_looks() -> None:
    """An observed run keeps every value, so that nothing is overwritten: plans are checked when made."""

    def overlapping(*arguments: Any) -> Plan:
        plan = plan_memory(*arguments)
        inputs = {node for node in plan.offsets if node.op.name == "input"}
        start = max(plan.offsets[node] for node in inputs) + 4096
        moved = {node: offset if node in inputs else start for node, offset in plan.offsets.items()}
        return replace(plan, offsets=moved, peak=plan.peak * 4 + start)

    with mock.patch.object(compiling, "plan_memory", overlapping), opened(stories()) as both:
        with pytest.raises(GraphError, match=r"memory plan: %.* has bytes .* and is read still where %"):
            both.bisect()
        with mock.patch.object(compiling, "check_plan", lambda graph, plan, device: plan):
            one = first(both.bisect())
    assert one.kind == "plan"


def test_where() -> None:
    right = np.arange(12, dtype=np.float32).reshape(3, 4)
    wrong = right.copy()
    wrong[1, 2:] += 1
    wrong[1, 0] = np.nan
    assert where(wrong, right) == "3 of 12 elements are wrong, in rows 1 of 3, columns 0,2-3 of 4"
    assert where(right, right).startswith("0 of 12")


def test_hints_about_rows_and_factors() -> None:
    with opened(stories()) as both:
        step = observe(both.b, IDS).steps[0]
    name = "layers.0.k"
    judge = Judge(both.b, NONE)
    assert judge.own is None
    with opened(stories(), "reference") as both:
        found = bisect_of_changed(both, step.values[name], lambda x: np.roll(x, 1, 0))
        assert any("row i is row i - 1 of the right value" in hint for hint in found)
        found = bisect_of_changed(both, step.values[name], lambda x: x * np.float32(0.5))
        assert any("the right value times 0.5" in hint for hint in found)


def bisect_of_changed(both: Opened, value: Any, change: Callable[[Any], Any]) -> tuple[str, ...]:
    """The hints for a saved run whose layers.0.k was changed."""
    run = observe(both.b, IDS, NONE)
    steps = [replace(s, values={**s.values, "layers.0.k": change(s.values["layers.0.k"])}) for s in run.steps]
    found = bisect(replace(run, steps=tuple(steps)), None, Judge(both.b, NONE))
    one = first(found)
    assert one.node.name == "layers.0.k"
    return look_inside(one.graph, one.other, one.arrays, one.got, both.a.device, both.b.device).hints
