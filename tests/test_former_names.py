"""Names of version 0.1: each has the effect of today's, and says so."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from typing import Any

import pytest

from graphml.former_names import (
    FORMER_ARGUMENTS,
    FORMER_ATTRIBUTES,
    FORMER_NAMES,
    FORMER_OP_ATTRIBUTES,
    FORMER_OPS,
)
from graphml.inspect.records import graph_of
from graphml.ir import text
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.passes.fusion import all_ops
from graphml.passes.placement_rules import Rule, parse_rules
from graphml.runtime.executor import Executor
from graphml.runtime.load_options import LoadOptions
from graphml.sampling import SamplingParams
from tests.looped import looped

FORMER = [(owner, *names) for owner, known in FORMER_ATTRIBUTES.items() for names in known.items()]
MADE = {
    "Builder": Builder,
    "Executor": lambda: Executor,
    "LoadOptions": LoadOptions,
    "SamplingParams": SamplingParams,
}


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_a_former_name_is_the_module_of_today(former: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in FORMER_NAMES]:
        monkeypatch.delitem(sys.modules, name)
    with warnings.catch_warnings(record=True) as caught:  # its parent is one, too
        warnings.simplefilter("always")
        module = importlib.import_module(former)
    assert str(caught[-1].message) == f"{former} is {FORMER_NAMES[former]} now"
    assert module is importlib.import_module(FORMER_NAMES[former])
    assert module.__name__ == FORMER_NAMES[former] == module.__spec__.name


def test_the_line_that_imports_it_is_named() -> None:
    code = "pass\nfrom graphml.engine.architecture import Architecture"
    command = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "<string>:2: DeprecationWarning: graphml.engine.architecture is graphml.loading" in done.stderr


def test_a_name_that_never_was_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"graphml\.app\.nothing"):
        importlib.import_module("graphml.app.nothing")


@looped(("owner", "former", "today"), FORMER, ids=[f"{o}.{n}" for o, n, _ in FORMER])
def test_a_former_attribute_is_that_of_today(owner: str, former: str, today: str) -> None:
    module, _, name = owner.rpartition(".")
    one = MADE[name]() if name in MADE else importlib.import_module(owner)
    assert name not in MADE or hasattr(importlib.import_module(module), name)
    with pytest.warns(DeprecationWarning, match=f"^{owner}.{former} is {today} now$") as caught:
        found = getattr(one, former)
    assert caught[0].filename == __file__
    assert found == getattr(one, today)


def test_a_former_field_is_taken() -> None:
    with pytest.warns(
        DeprecationWarning, match="argument 'penalty_last_n' of SamplingParams is 'repeat_last_n'"
    ):
        params = SamplingParams(**{"penalty_last_n": 5})  # type: ignore[arg-type]
    assert params == SamplingParams(repeat_last_n=5)


def test_an_attribute_that_never_was_is_not_there() -> None:
    for owner in FORMER_ATTRIBUTES:
        name = owner.rpartition(".")[2]
        one = MADE[name]() if name in MADE else importlib.import_module(owner)
        with pytest.raises(AttributeError, match="never_was"):
            _ = one.never_was


def selecting(g: Builder, **named: int) -> tuple[Node, Node]:
    """Nodes that select blocks of two positions, and attend to them."""
    q = g.input("q", F32, (g.n_tokens, 1, 16))
    selected = g.select(q, q, layer=0, n=3, **named)
    return selected, g.attend(q, q, q, layer=0, scale=1.0, selected=selected, **named)


def test_former_arguments_are_those_of_today() -> None:
    assert {name: {"span": "selection_block"} for name in ("attend", "select")} == FORMER_ARGUMENTS
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nodes = selecting(Builder(), span=2)
    assert {one.filename for one in caught} == {__file__}
    methods = ("select", "attend")
    told = [f"argument 'span' of g.{name} is 'selection_block' now" for name in methods]
    assert [str(one.message) for one in caught] == told
    assert list(map(str, nodes)) == list(map(str, selecting(Builder(), selection_block=2)))


def as_before(node: Node) -> dict[str, Any]:
    """A node of a dump as version 0.1 wrote it."""
    former = {today: name for name, today in FORMER_OPS.items()}
    attributes = {
        name.replace("selection_block", "span"): list(value) if isinstance(value, tuple) else value
        for name, value in node.attributes.items()
    }
    return {
        "name": node.name, "op": former.get(node.op.name, node.op.name), "dtype": node.dtype.name,
        "shape": [dim if isinstance(dim, int) else str(dim) for dim in node.shape], "source": None,
        "inputs": [one.name for one in node.inputs], "attributes": attributes, "origin": [],
    }  # fmt: skip


def test_graphs_are_read_with_the_former_names_of_ops() -> None:
    assert all(today in all_ops() and former not in all_ops() for former, today in FORMER_OPS.items())
    g = Builder()
    selected, attended = selecting(g, selection_block=2)
    graph = g.finish(selected=selected, attended=attended)
    today = text.write(graph)
    former = today.replace("= select_blocks(", "= select_spans(").replace("'selection_block'", "'span'")
    assert former.count("span") == 3
    told = [
        "op select_spans is select_blocks now",
        *(f"attribute span of op {name} is selection_block now" for name in FORMER_OP_ATTRIBUTES),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert text.write(text.parse(former, all_ops())) == today
        found = graph_of(list(map(as_before, graph.nodes)), {"selected": selected.name})
    assert [str(one.message) for one in caught] == 2 * told
    assert [node.op for node in found.nodes] == [node.op for node in graph.nodes]
    assert [node.attributes for node in found.nodes] == [node.attributes for node in graph.nodes]


@looped("former", FORMER_OPS)
def test_rules_of_placement_know_the_former_names_of_ops(former: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^op {former} is {FORMER_OPS[former]} now$"):
        assert parse_rules(f"cpu:{former}", ["cpu"]) == (Rule("cpu", FORMER_OPS[former]),)
