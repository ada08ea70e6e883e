"""`graphml import` of comparisons, choices, extremes and running sums: a record with more ops in a layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphml.authoring.importing.importing import import_description
from graphml.authoring.importing.proof import prove
from graphml.errors import ArchitectureError
from tests.import_records import described

Ops = list[tuple[str, str, dict[str, Any]]]
X = {"node": "X"}  # the activation of the feed-forward


def with_ops(ops: Ops, rows: tuple[str, ...] = ()) -> Callable[[dict[str, Any]], None]:
    """A change of a record: (name, op, arguments) after each activation, the last in its place.

    rows: the names of those whose last dimension is 1.
    """

    def change(found: dict[str, Any]) -> None:
        nodes = found["nodes"]
        for layer, gelu in enumerate([one for one in nodes if one["op"] == "aten.gelu.default"]):
            names = {"X": gelu["name"], **{name: f"{name}_{layer}" for name, _, _ in ops}}

            def named(value: Any, names: dict[str, str] = names) -> Any:
                return {"node": names[value["node"]]} if isinstance(value, dict) else value

            made = [
                {
                    **gelu,
                    "name": names[name],
                    "op": f"aten.{op}",
                    "args": {key: named(value) for key, value in arguments.items()},
                    "shape": [*gelu["shape"][:-1], 1] if name in rows else gelu["shape"],
                }
                for name, op, arguments in ops
            ]
            at = nodes.index(gelu) + 1
            for later in nodes[at:]:
                later["args"] = {
                    key: {"node": made[-1]["name"]} if value == {"node": gelu["name"]} else value
                    for key, value in later["args"].items()
                }
            nodes[at:at] = made

    return change


def node(name: str) -> dict[str, str]:
    return {"node": name}


RIGHT: dict[str, tuple[Ops, tuple[str, ...], list[str]]] = {
    "choices": (
        [
            ("low", "lt.Scalar", {"self": X, "other": 0.25}),
            ("high", "gt.Scalar", {"self": X, "other": -0.05}),
            ("other", "neg.default", {"self": X}),
            ("first", "where.self", {"condition": node("low"), "self": X, "other": node("other")}),
            ("last", "masked_fill.Scalar", {"self": node("first"), "mask": node("high"), "value": 0.5}),
        ],
        (),
        ["g.less(", "g.where(", "g.constant(0.25)", "g.constant(0.05)", "g.constant(0.5)", "g.equal("],
    ),
    "numbers": (
        [
            ("size", "abs.default", {"self": X}),
            ("log", "log.default", {"self": node("size")}),
            ("below", "floor.default", {"self": node("log")}),
            ("held", "minimum.default", {"self": node("below"), "other": X}),
        ],
        (),
        ["g.log(g.absolute(", "g.floor(", "g.minimum("],
    ),
    "truths": (
        [
            ("low", "lt.Scalar", {"self": X, "other": 0.25}),
            ("high", "greater.Scalar", {"self": X, "other": -0.05}),
            ("both", "logical_and.default", {"self": node("low"), "other": node("high")}),
            ("none", "logical_not.default", {"self": node("both")}),
            ("top", "greater.Scalar", {"self": X, "other": 0.5}),
            ("any", "logical_or.default", {"self": node("both"), "other": node("top")}),
            ("last", "where.self", {"condition": node("any"), "self": X, "other": node("none")}),
        ],
        (),
        ["g.maximum(", "g.where(", "g.equal("],
    ),
    "spread": (
        [
            ("apart", "std.correction", {"self": X, "dim": [-1], "correction": 0, "keepdim": True}),
            ("squares", "var.correction", {"self": X, "dim": [-1], "keepdim": True}),
            ("most", "add.Tensor", {"self": node("apart"), "other": node("squares")}),
            ("held", "subtract.Tensor", {"self": X, "other": node("most")}),
            ("last", "multiply.Tensor", {"self": node("held"), "other": X}),
        ],
        ("apart", "squares", "most"),
        ["g.sqrt(", "g.sqr(", "g.sum_rows("],
    ),
    "rows": (
        [
            ("top", "amax.default", {"self": X, "dim": [-1], "keepdim": True}),
            ("least", "amin.default", {"self": X, "dim": [-1], "keepdim": True}),
            ("held", "minimum.default", {"self": X, "other": node("top")}),
            ("is_top", "ge.Tensor", {"self": X, "other": node("top")}),
            ("is", "where.self", {"condition": node("is_top"), "self": node("least"), "other": node("held")}),
            ("sums", "cumsum.default", {"self": node("is"), "dim": -1}),
        ],
        ("top", "least"),
        ["g.max_rows(", "g.min_rows(", "g.minimum(", "g.less_equal(", "g.cumsum("],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_they_become_calls_that_agree_in_every_part(name: str, tmp_path: Path) -> None:
    ops, rows, calls = RIGHT[name]
    made = import_description(described("plain-e", tmp_path / "traced", with_ops(ops, rows)), {})
    assert [one for one in calls if one not in made.text] == [], made.text
    path = tmp_path / "made.py"
    path.write_text(made.text)
    proof = prove(made, path, None)
    assert proof.holds, [(one.what, one.tokens, one.nmse) for one in proof.lines]


REFUSED: dict[str, tuple[Ops, str]] = {
    "sums over tokens": (
        [("sums", "sum.dim_IntList", {"self": X, "dim": [1], "keepdim": True})],
        r"sum.* in blocks\.0 .*over the tokens",
    ),
    "decimals": (
        [("rounded", "round.decimals", {"self": X, "decimals": 2})],
        r"round.* in blocks\.0 .*rounds to 2 decimals",
    ),
    "numbers": (
        [
            ("mask", "lt.Scalar", {"self": X, "other": 0.0}),
            ("last", "where.ScalarOther", {"condition": node("mask"), "self": 1.0, "other": 0.0}),
        ],
        r"where.* in blocks\.0 .*chooses between numbers or parameters",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused(name: str, tmp_path: Path) -> None:
    ops, why = REFUSED[name]
    with pytest.raises(ArchitectureError, match=why):
        import_description(described("plain-e", tmp_path / "traced", with_ops(ops)), {})
