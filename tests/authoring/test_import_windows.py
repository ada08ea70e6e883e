"""Windows that the graph of a mask tells by arithmetic: more tokens than any of its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphml.authoring.importing.importing import import_description
from tests.import_records import described


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


@pytest.mark.parametrize("divisors", [[64], [8, 8], [2, 4, 8]])
def test_windows_of_divided_distances_are_found(divisors: list[int], folder: Path) -> None:
    """`d // 64 < 8` is a window of 512 tokens, and `d // 8 // 8 < 8` is, too."""

    def divided(found: dict[str, Any]) -> None:
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            for i, divisor in enumerate(divisors):
                args = {"self": one["args"]["self"], "other": divisor}
                parts = {"op": "aten.floor_divide.default", "args": args}
                blocks = {**one, "name": f"{one['name']}_blocks_{i}", "dtype": "int64", **parts}
                found["nodes"].insert(found["nodes"].index(one), blocks)
                one["args"] = {"self": {"node": blocks["name"]}, "other": 8}

    description = described("plain-d", folder / f"divided-{len(divisors)}", divided)
    assert import_description(description, {}).keys["attention.sliding_window"] == 512


def test_a_window_that_is_a_quotient_is_found(folder: Path) -> None:
    """Of 800 // 2 tokens: no position is divided there."""

    def quotient(found: dict[str, Any]) -> None:
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            parts = {"op": "aten.floor_divide.default", "args": {"self": 800, "other": 2}, "shape": []}
            window = {**one, "name": f"{one['name']}_window", "dtype": "int64", **parts}
            found["nodes"].insert(found["nodes"].index(one), window)
            one["args"]["other"] = {"node": window["name"]}

    description = described("plain-d", folder / "quotient", quotient)
    assert import_description(description, {}).keys["attention.sliding_window"] == 400
