"""Windows that the graph of a mask tells by arithmetic: more tokens than any of its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphml.authoring.importing import masks
from graphml.authoring.importing.importing import Imported, import_description
from graphml.authoring.importing.proof import longest, prove
from graphml.errors import ArchitectureError
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


@pytest.mark.parametrize("window", [300, 20000, 500_000])
def test_a_window_of_any_length_is_found(window: int, folder: Path) -> None:
    """Far positions alone are looked at: a mask of all of them would have as many numbers as pairs."""

    def longer(found: dict[str, Any]) -> None:
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            one["args"]["other"] = window

    description = described("plain-d", folder / f"window-{window}", longer)
    assert import_description(description, {}).keys["attention.sliding_window"] == window


def with_visible(found: dict[str, Any], op: str, number: int, window: int) -> None:
    """Besides its window, each token sees those for whose position a comparison holds."""
    for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
        nodes = {each["name"]: each for each in found["nodes"]}
        positions = nodes[one["args"]["self"]["node"]]["args"]["other"]
        near = {**one, "name": f"{one['name']}_near", "args": {**one["args"], "other": window}}
        first = {**one, "name": f"{one['name']}_first", "op": op, "shape": one["shape"][-1:],
                 "args": {"self": positions, "other": number}}  # fmt: skip
        at = found["nodes"].index(one)
        found["nodes"][at:at] = [near, first]
        one |= {"op": "aten.logical_or.default",
                "args": {"self": {"node": near["name"]}, "other": {"node": first["name"]}}}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "number", "window"),
    [("aten.lt.Scalar", 4, 64), ("aten.lt.Scalar", 1, 4000), ("aten.eq.Scalar", 700, 64),
     ("aten.gt.Scalar", 9000, 6)],
)  # fmt: skip
def test_tokens_that_are_seen_beyond_the_window_are_no_window(
    op: str, number: int, window: int, folder: Path
) -> None:
    """The first four always, say, hide nothing in a text that is as long as the window and those four."""
    name = f"first-{op}-{number}"
    description = described("plain-d", folder / name, lambda found: with_visible(found, op, number, window))
    with pytest.raises(ArchitectureError, match=r"in blocks\.0 .*; got another mask"):
        import_description(description, {})


def test_a_mask_that_reads_other_pairs_is_looked_at_as_a_whole(folder: Path) -> None:
    def turned(found: dict[str, Any], window: int) -> None:
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            source = one["args"]["self"]
            one["args"]["other"] = window
            at = found["nodes"].index(one)
            for i in range(2):
                args = {"self": source, "dims": [0]}
                flip = {**one, "name": f"{one['name']}_turned_{i}", "op": "aten.flip.default", "args": args}
                found["nodes"].insert(at + i, {**flip, "dtype": "int64"})
                source = {"node": flip["name"]}
            one["args"]["self"] = source

    found = described("plain-d", folder / "turned", lambda found: turned(found, 300))
    assert import_description(found, {}).keys["attention.sliding_window"] == 300
    found = described("plain-d", folder / "turned-far", lambda found: turned(found, 20000))
    with pytest.raises(ArchitectureError, match=r"in blocks\.0 .*has numbers for a distance of 20000"):
        import_description(found, {})


def test_layers_keep_windows_of_different_lengths(folder: Path) -> None:
    def different(found: dict[str, Any]) -> None:
        for i, one in enumerate(one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"):
            one["args"]["other"] = 6 + 20_000 * i

    imported = import_description(described("plain-d", folder / "different", different), {})
    assert imported.keys["attention.sliding_windows"] == [6, 20_006]
    assert "window=config.windows[layer.index]" in imported.text


def test_a_mask_with_sums_along_the_text_is_looked_at_far_away(folder: Path) -> None:
    """As of texts in one row, which transformers counts: values of single positions, at all of them."""

    def packed(found: dict[str, Any]) -> None:
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            nodes = {each["name"]: each for each in found["nodes"]}
            positions = nodes[one["args"]["self"]["node"]]["args"]["other"]
            row, name = {**one, "shape": one["shape"][-1:], "dtype": "int64"}, one["name"]
            zeros = {"op": "aten.mul.Tensor", "args": {"self": positions, "other": 0}}
            sums = {"op": "aten.cumsum.default", "args": {"self": {"node": f"{name}_zeros"}, "dim": 0}}
            rows = {"op": "aten.unsqueeze.default", "args": {"self": {"node": f"{name}_sums"}, "dim": 1}}
            operands = {"self": {"node": f"{name}_rows"}, "other": {"node": f"{name}_sums"}}
            both = {"self": {"node": f"{name}_near"}, "other": {"node": f"{name}_alike"}}
            near = {**one["args"], "other": 20_000}
            at = found["nodes"].index(one)
            found["nodes"][at:at] = [
                {**row, "name": f"{name}_zeros", **zeros},
                {**row, "name": f"{name}_sums", **sums},
                {**row, "name": f"{name}_rows", "shape": [row["shape"][0], 1], **rows},
                {**one, "name": f"{name}_alike", "op": "aten.eq.Tensor", "args": operands},
                {**one, "name": f"{name}_near", "args": near},
            ]
            one |= {"op": "aten.logical_and.default", "args": both}

    description = described("plain-d", folder / "packed", packed)
    assert import_description(description, {}).keys["attention.sliding_window"] == 20_000


def test_a_long_traced_text_is_looked_at_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a window of 8,192 tokens: all pairs of so many tokens would take gigabytes, and minutes."""

    def long(found: dict[str, Any]) -> None:
        found["length"] = 8197
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            one["args"]["other"] = 8192

    sizes: list[int] = []
    run = masks.run
    monkeypatch.setattr(masks, "run", lambda *args: (sizes.append(args[3]), run(*args))[1])
    imported = import_description(described("plain-d", folder / "long", long), {})
    assert imported.keys["attention.sliding_window"] == 8192
    assert 0 < max(sizes) <= masks.LARGEST + 3
    text = longest(imported)
    assert (text.tokens, text.window) == (605, 8192)
    assert 605**2 * 8 < text.n_bytes < 100 << 20
    assert "beyond the window of 8192" in text.left_out


def test_a_text_is_longer_than_a_window_where_it_may_be(folder: Path) -> None:
    def short(found: dict[str, Any]) -> None:
        for one in [one for one in found["nodes"] if one["op"] == "aten.lt.Scalar"]:
            one["args"]["other"] = 550

    imported = import_description(described("plain-d", folder / "short", short), {})
    assert (longest(imported).tokens, longest(imported).left_out) == (555, "")
    assert prove(imported, written(imported, folder / "short.py"), None).holds


def written(imported: Imported, path: Path) -> Path:
    path.write_text(imported.text)
    return path
