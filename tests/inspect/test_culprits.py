"""Which fusion is to blame: found in few trials, and confirmed with only it off."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from graphml.inspect.bisect.bisect import examine
from graphml.inspect.bisect.culprits import search
from graphml.inspect.bisect.findings import as_json, as_text
from graphml.inspect.bisect.judging import Judge
from graphml.ir.op import Term
from tests.inspect import faults
from tests.inspect.bisected import IDS, NONE, first, stories
from tests.inspect.test_bisect import bound_wrongly
from tests.inspect.test_copies import SPLIT, placed

NAMES = [f"f{i}" for i in range(35)]


@pytest.mark.parametrize("culprit", NAMES)
def test_one_of_many_is_found_in_few_trials(culprit: str) -> None:
    trials: list[frozenset[str]] = []

    def right(off: Collection[str]) -> bool:
        trials.append(frozenset(off))
        return culprit in off

    assert search(NAMES, right) == (culprit,)
    assert frozenset([culprit]) in trials  # confirmed with only it off
    assert len(trials) <= 8
    assert len(set(trials)) == len(trials)


def test_of_one_upon_the_other_the_one_that_is_enough() -> None:
    """f1 takes what f0 made: f1 is off when f0 is."""
    assert search(["f0", "f1"], lambda off: "f0" in off) == ("f0",)
    assert search(["f0", "f1"], lambda off: "f0" in off or "f1" in off) == ("f1",)


def test_one_that_takes_the_place_of_another_is_found_too() -> None:
    """Both are wrong, and each matches when the other is off."""
    assert search(NAMES, lambda off: {"f3", "f20"} <= set(off)) == ("f3", "f20")


def test_what_no_fusion_made_has_no_culprit() -> None:
    assert search(NAMES, lambda off: False) == ()
    assert search([], lambda off: True) == ()


def products_bound_wrongly(table: Any) -> Any:
    """The fusion on top of swiglu swaps its two matrices."""
    right = table["mul_mat_swiglu"]
    term = right.patterns()[0][0]
    gate_term, up_term = term.arguments
    assert isinstance(gate_term, Term)
    assert isinstance(up_term, Term)
    wrong = lambda up, gate, x: term.op(gate_term.op(gate, x), up_term.op(up, x))  # noqa: E731
    return {"mul_mat_swiglu": replace(right, find=wrong)}


def twice(table: Any) -> Any:
    """A second fusion as wrong as the first, which matches where that is off."""
    wrong = bound_wrongly(table)["swiglu"]
    return {"swiglu": wrong, "swiglu_again": replace(wrong, name="swiglu_again")}


CULPRITS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "the one below": (bound_wrongly, ("swiglu",)),
    "the one on top": (products_bound_wrongly, ("mul_mat_swiglu",)),
    "another in its place": (twice, ("swiglu", "swiglu_again")),
}


@pytest.mark.parametrize("place", ["", SPLIT])
@pytest.mark.parametrize("name", CULPRITS)
def test_the_fusion_to_blame_is_named(name: str, place: str) -> None:
    """Of several that made one node; all of them were tried."""
    change, culprits = CULPRITS[name]
    with (
        faults.fusions_as(change),
        placed(stories(), place, "cpu,reference" if place else "cpu") as both,
    ):
        run, other, found = examine(both.a, IDS, both.a.options, Judge(both.b, NONE, own=both.a.device))
    one = first(found)
    assert (one.kind, one.node.name) == ("rewrite", "layers.0.swiglu")
    assert one.applied is not None
    assert (one.culprits, one.applied.fusion) == (culprits, culprits[0])
    assert set(one.suspects) == {"dequant_mul_mat", "swiglu", "mul_mat_swiglu"}
    said = as_json(found)["findings"][0]
    assert (said["fusion"], tuple(said["culprits"])) == (culprits[0], culprits)
    text = as_text(found, run, other)
    assert f"right with {','.join(f'-{fusion}' for fusion in culprits)} " in text
