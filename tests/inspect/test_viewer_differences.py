"""The viewer between passes and graphs: what the search finds elsewhere, where it opens, what differs."""

from __future__ import annotations

from pathlib import Path

from graphml.inspect.dumps.diff import GraphTitles, both, compare
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.selection import select
from graphml.inspect.viewer import render
from tests.browser import Browser
from tests.inspect.chromium import Page, document, opened

SIDES = GraphTitles("old", "the old model after build"), GraphTitles("new", "the new model after fuse")


def two(layers: int = 3, layer: int | None = None) -> Document:
    """The page of `diff`: a graph before and after fusion."""
    found = document(layers)
    a, b = select(found, "build", layer), select(found, "fuse", layer)
    return both(found, a, b, compare(a, b), SIDES)


def options(viewer: Page) -> list[str]:
    return [" ".join(text.split()) for text in viewer.page.locator("#found li").all_text_contents()]


def test_a_search_says_which_other_passes_have_it(chromium: Browser, tmp_path: Path) -> None:
    found = document(3)
    with opened(chromium, render(found), tmp_path) as viewer:
        page = viewer.page
        page.fill("#search", "rms_norm_mul")
        assert options(viewer)[:2] == ["none in build", "in fuse: 7 nodes"]
        assert page.text_content("#status").startswith("0 nodes in build, 7 in fuse")
        page.keyboard.press("Enter")
        assert options(viewer)[0] == "in fuse:"
        assert page.get_attribute("#pass-0", "aria-selected") == "true", "only looked at"
        page.keyboard.press("Enter")
        assert page.get_attribute("#pass-1", "aria-selected") == "true"
        assert "rms_norm_mul in the pass fuse" in page.text_content("#panel .op")


def test_all_words_of_a_search_must_match_in_any_order_and_types_count(
    chromium: Browser, tmp_path: Path
) -> None:
    found = document(3)
    weights = [node for node in found["passes"][0]["nodes"] if node["name"].endswith("attn_v.weight")]
    for node in weights[:2]:
        node["dtype"] = "q6_k"
    with opened(chromium, render(found), tmp_path) as viewer:
        for text, names in [
            ("swiglu layers.1", ["layers.1.swiglu"]),
            ("q6_k attn_v", ["blk.0.attn_v.weight", "blk.1.attn_v.weight"]),
            ("blk.0 Q6_K", ["blk.0.attn_v.weight"]),
        ]:
            viewer.page.fill("#search", text)
            assert viewer.page.locator("#found .name").all_text_contents() == names


def test_a_page_opens_on_the_last_pass_unless_another_was_asked_for(
    chromium: Browser, tmp_path: Path
) -> None:
    found = document(2)
    for view, pass_ in [({}, found["passes"][-1]["name"]), ({"pass": "fuse", "layer": "1"}, "fuse")]:
        with opened(chromium, render({**found, "view": view}), tmp_path) as viewer:
            chosen = viewer.page.locator("[role=tab][aria-selected=true] .tab")
            assert chosen.text_content() == pass_
            assert ("layers.1.q" in viewer.names(".node")) is bool(view)


def test_times_are_coloured_by_their_logarithm_or_their_share(chromium: Browser, tmp_path: Path) -> None:
    found = document(2)
    del found["view"]
    nodes = found["passes"][-1]["nodes"]
    names = [node["name"] for node in nodes if node["layer"] == 1 and node["inputs"]][-4:]
    found["overlays"] = {"time_us": dict(zip(names, (1.0, 10.0, 100.0, 1000.0), strict=True))}
    heat = "one => parseFloat(one.style.getPropertyValue('--heat'))"
    with opened(chromium, render(found), tmp_path) as viewer:
        page = viewer.page
        assert page.input_value("#overlay") == "time", "what was measured"
        page.click("#all")
        viewer.drawn()
        heats = [page.eval_on_selector(f"[data-name='{name}']", heat) for name in names]
        assert heats == [0, 33, 67, 100]
        assert "logarithmic" in page.text_content("#legend")
        assert "1.11 ms · 100 %" in page.locator(".head .count").nth(1).text_content()
        page.select_option("#overlay", "share")
        viewer.drawn()
        assert "· 90.0 %" in page.text_content(f"[data-name='{names[-1]}'] .type")
        page.click("[data-view=table]")
        page.fill(".page-tools input", names[-1])
        assert "90.0 %" in page.locator("tbody tr >> nth=0").text_content()
        page.click("#pass-0")
        page.click("[data-view=drawing]")
        page.click("#legend button")
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") != "pass-0"


def test_a_diff_names_both_sides_and_steps_from_difference_to_difference(
    chromium: Browser, tmp_path: Path
) -> None:
    made = two()
    groups = {(one["kind"], one["left"] or one["right"]) for one in made["difference"]}
    assert len(groups) > 20
    with opened(chromium, render(made), tmp_path) as viewer:
        page, step = viewer.page, viewer.page.locator("#step")
        assert page.locator(".tab").all_text_contents() == ["a: old", "b: new"]
        assert [text.split(":")[1] for text in page.locator(".pane-title").all_text_contents()] == [
            " old",
            " new",
        ]
        assert "the old model after build" in page.text_content("#panel")
        count = int(step.text_content().split()[0])
        seen = []
        for place in range(1, count + 1):
            page.keyboard.press("n")
            assert step.text_content().startswith(f"{place} of {count} differences")
            seen.append(page.text_content("#panel h2"))
        assert len(set(seen)) == count
        page.keyboard.press("n")
        assert step.text_content().startswith("1 of"), "around"
        page.keyboard.press("p")
        assert step.text_content().startswith(f"{count} of")
        viewer.find("layers.0.swiglu")
        assert "op mul → swiglu" in " ".join(
            one.strip() for one in page.locator("#panel dl >> nth=1").locator("dt, dd").all_text_contents()
        )
        page.keyboard.press("Shift+N")
        assert page.text_content("#panel h2") == "layers.1.swiglu"
        assert "2 of 3 layers" in step.text_content()
        page.click("#before")
        assert page.text_content("#panel h2") != "layers.1.swiglu"


def test_a_diff_of_a_layer_opens_it_on_both_sides(chromium: Browser, tmp_path: Path) -> None:
    made = two(layer=1)
    made["view"]["layer"] = "1"
    with opened(chromium, render(made), tmp_path) as viewer:
        left, right = ".pane:nth-child(1) ", ".pane:nth-child(2) "
        assert "layers.1.silu" in viewer.names(left + ".node")
        assert "layers.1.swiglu" in viewer.names(right + ".node")
        assert viewer.page.locator(".run").count() == 0, "what comes in is an input, not a layer"
        assert "layers.0.ffn_residual" in viewer.names(left + ".node")


def test_the_page_colours_what_the_command_found(chromium: Browser, tmp_path: Path) -> None:
    """`compare` also pairs nodes that have other names: the page must not call them removed and added."""
    found = document(2)
    a, b = select(found, "build"), select(found, "build")
    renamed = [
        {**node, "name": node["name"].replace("layers.1.gate", "layers.1.other"), "origin": ["layers.1.gate"],
         "inputs": [name.replace("layers.1.gate", "layers.1.other") for name in node["inputs"]]}
        if "layers.1." in node["name"] and node["name"].endswith(("gate", "silu")) else node
        for node in b.nodes
    ]  # fmt: skip
    b = type(b)(b.name, renamed, b.outputs)
    with opened(chromium, render(both(found, a, b, compare(a, b), SIDES)), tmp_path) as viewer:
        viewer.page.click("#all")
        right = ".pane:nth-child(2) "
        assert viewer.names(right + "[data-family=added]") == set()
        assert "layers.1.other" in viewer.names(right + "[data-family=changed]")
