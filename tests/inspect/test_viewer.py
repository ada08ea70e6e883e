"""The viewer in a real browser: it draws, finds, opens, compares, and asks nothing of the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphml.inspect.dumps.without_weights import describe_model
from graphml.inspect.viewer import render
from tests.browser import Browser
from tests.inspect import samples
from tests.inspect.chromium import LAYERS, Page, document, opened
from tests.sample_models import MODELS


@pytest.fixture
def viewer(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    with opened(chromium, render(document()), tmp_path) as page:
        yield page


@pytest.fixture
def short(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    """Of six layers, which all are drawn in half a second; of 32 in five."""
    with opened(chromium, render(document(SHORT)), tmp_path) as page:
        yield page


SHORT = 6
ELEMENTS = "document.querySelectorAll('*').length"


def test_a_deep_graph_opens_as_quickly_as_a_flat_one(chromium: Browser, tmp_path: Path) -> None:
    """It takes as long as it has elements to draw: all layers are one box; an open one fills when seen."""
    found = []
    for layers, nodes in (LAYERS, 1100), (88, 3000):
        unfused = document(layers)["passes"][0]["nodes"]
        assert len(unfused) > nodes
        with opened(chromium, render(document(layers)), tmp_path) as viewer:
            found.append(viewer.page.evaluate(ELEMENTS))
            at_once = viewer.page.evaluate(f"document.querySelector('#all').click(), {ELEMENTS}")
            assert at_once < len(unfused)
    assert found[0] == found[1] < 400


def test_layers_are_one_box_until_they_are_opened(viewer: Page) -> None:
    page = viewer.page
    labels = page.eval_on_selector_all(".run .name", "all => all.map(one => one.textContent)")
    assert labels == [f"▸ layer 0 … {LAYERS - 1}  × {LAYERS}"]
    assert not any(name.startswith("layers.") for name in viewer.names(".node"))
    page.click(".run")
    assert {"layers.0.q", "layers.0.swiglu"} <= viewer.names(".node")
    assert "layers.1.q" not in viewer.names(".node")
    assert page.text_content(".run .name") == f"▸ layer 1 … {LAYERS - 1}  × {LAYERS - 1}"
    page.click(".head")
    assert "layers.0.q" not in viewer.names(".node")


def test_nothing_overlaps_and_edges_go_down(short: Page) -> None:
    page = short.page
    page.click("#all")
    short.drawn()
    page.emulate_media(media="print")  # there is nothing that is out of sight
    boxes = page.eval_on_selector_all(
        ".node, .port",
        "all => all.map(one => one.getBoundingClientRect()).map(b => [b.x, b.y, b.right, b.bottom])",
    )  # fmt: skip
    nodes = {
        node["name"]
        for node in document(SHORT)["passes"][0]["nodes"]
        if node["op"] not in ("weight", "state")
    }
    assert short.names(".node") == nodes
    boxes.sort(key=lambda box: box[1])
    for place, (left, _, right, bottom) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            if other[1] >= bottom:
                break
            assert right <= other[0] or other[2] <= left
    paths = page.eval_on_selector_all(".edge", "all => all.map(one => one.getAttribute('d'))")
    for path in paths:
        numbers = path.replace("M", " ").replace("L", " ").replace("C", " ").split()
        assert float(numbers[1]) < float(numbers[-1])


def test_searching_jumps_into_a_closed_layer(viewer: Page) -> None:
    viewer.find("layers.7.swiglu")
    assert viewer.names(".node.selected") == {"layers.7.swiglu"}
    assert viewer.page.text_content("#panel h2") == "layers.7.swiglu"
    box = viewer.page.locator(".node.selected").bounding_box()
    stage = viewer.page.locator("#stage").bounding_box()
    assert stage["x"] < box["x"] < stage["x"] + stage["width"]
    assert stage["y"] < box["y"] < stage["y"] + stage["height"]
    viewer.page.fill("#search", "no such thing")
    assert "no such node" in viewer.page.text_content("#found")


def test_a_fused_node_shows_what_it_covers_and_the_other_way_round(viewer: Page) -> None:
    page = viewer.page
    page.click("[data-view=compare]")
    viewer.find("layers.2.swiglu")
    left, right = ".pane:nth-child(1) ", ".pane:nth-child(2) "
    assert viewer.names(right + ".selected") == {"layers.2.swiglu"}
    assert viewer.names(left + ".related") == {"layers.2.silu", "layers.2.swiglu"}
    panel = page.text_content("#panel")
    assert "Fused by" in panel
    assert "covers 2 nodes" in panel
    page.click(left + "[data-name='layers.2.silu']")
    assert viewer.names(left + ".selected") == {"layers.2.silu"}
    assert viewer.names(right + ".related") == {"layers.2.swiglu"}
    assert viewer.names(left + ".related") == {"layers.2.swiglu"}
    assert "into layers.2.swiglu" in page.text_content("#panel")
    page.keyboard.press("Escape")
    assert not viewer.names(".related")
    page.hover(right + "[data-name='layers.2.ffn_norm']")
    assert {"layers.2.ffn_norm", "layers.2.rms_norm_1"} <= viewer.names(left + ".related")


def test_a_selection_stays_from_pass_to_pass(viewer: Page) -> None:
    page = viewer.page
    page.keyboard.press("]")
    assert page.get_attribute("#pass-1", "aria-selected") == "true"
    viewer.find("layers.0.swiglu")
    assert "swiglu" in page.text_content("#panel .op")
    page.keyboard.press("[")
    assert "mul in the pass build" in page.text_content("#panel .op")
    assert viewer.names(".related") == {"layers.0.silu"}


def test_reasons_of_refusals_stand_at_the_node_and_its_neighbours(chromium: Browser, tmp_path: Path) -> None:
    found = document(2)
    reason = "layers.0.up has another reader"
    found["fusions"]["refused"] = [
        {"fusion": "qkv", "node": "layers.0.gate", "at": "layers.0.up", "reason": reason}
    ]
    with opened(chromium, render(found), tmp_path) as viewer:
        viewer.find("layers.0.gate")
        assert "Fusions refused here" in viewer.page.text_content("#panel")
        assert reason in viewer.page.text_content("#panel")
        viewer.find("layers.0.silu")
        assert "Refused at neighbours" in viewer.page.text_content("#panel")
        viewer.page.click("[data-view=fusions]")
        assert f"refused once: {reason}" in viewer.page.text_content("#stage")


def test_overlays_colour_and_explain(chromium: Browser, tmp_path: Path) -> None:
    found = document(2)
    last = found["passes"][-1]
    names = [node["name"] for node in last["nodes"] if node["op"] not in ("weight", "state", "input")]
    found["overlays"] = {
        "time_us": {name: 10.0 * place for place, name in enumerate(names)},
        "nmse": {name: 1e-9 * 4.0**place for place, name in enumerate(names)},
    }
    with opened(chromium, render(found), tmp_path) as viewer:
        page = viewer.page
        assert page.eval_on_selector_all("#overlay option", "all => all.map(one => one.value)") == [
            "family", "change", "time", "share", "bytes", "error",
        ]  # fmt: skip
        page.click("#all")
        page.click(f"#pass-{last_index(found)}")
        heat = "one => parseFloat(one.style.getPropertyValue('--heat'))"
        for kind in ("time", "error"):
            page.select_option("#overlay", kind)
            page.wait_for_timeout(200)
            first, late = (
                page.eval_on_selector(f"[data-name='{name}']", heat) for name in (names[1], names[-1])
            )
            assert first < late == 100
            colours = {name: fill(page, name) for name in (names[1], names[-1])}
            assert len(set(colours.values())) == 2
        page.select_option("#overlay", "time")
        assert "ms" in page.text_content("#legend") or "µs" in page.text_content("#legend")
        page.click("#pass-0")
        assert "nothing measured" in page.text_content("#legend")


def last_index(found: dict[str, Any]) -> int:
    return len(found["passes"]) - 1


def fill(page: Any, name: str) -> str:
    colour: str = page.eval_on_selector(f"[data-name='{name}'] .card", "one => getComputedStyle(one).fill")
    return colour


def test_layers_that_take_turns_are_one_box(chromium: Browser, tmp_path: Path) -> None:
    found = document(16)
    found["collapsed"] = []
    for one in found["passes"]:
        one["nodes"] = [
            node | {"dtype": "f16" if (node["layer"] or 0) % 2 else "f32"} for node in one["nodes"]
        ]
    with opened(chromium, render(found), tmp_path) as viewer:
        label = viewer.page.text_content(".run .name")
        assert label == "▸ layer 0 … 15  × 8 (2 kinds)"


def test_the_table_and_the_memory_say_the_same_in_other_forms(viewer: Page) -> None:
    page = viewer.page
    page.click("[data-view=table]")
    assert page.locator("tbody tr").count() == 300
    page.fill(".page-tools input", "layers.31.")
    assert page.locator("tbody tr").count() == sum(
        "layers.31." in str([node["name"], node["inputs"]]) for node in document()["passes"][0]["nodes"]
    )
    page.click("thead button >> text=bytes")
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.click("tbody .link >> nth=0")
    assert page.text_content("#panel h2") == page.text_content("tbody tr.selected .link")
    page.fill(".page-tools input", "mul_mat layers.3.q")
    assert page.locator("tbody tr").count() == 1, "all words"
    page.click("[data-view=memory]")
    planned = [node for node in document()["passes"][-1]["nodes"] if node["buffer"]]
    assert page.locator(".life").count() == len(planned) > 100
    assert have_extent(page)


def test_inputs_in_the_table_are_whole_names_that_go_to_the_input(viewer: Page) -> None:
    page = viewer.page
    page.set_viewport_size({"width": 1280, "height": 800})
    page.click("[data-view=table]")
    page.fill(".page-tools input", "layers.3.attention")
    shown = page.locator("td.inputs .link")
    attention = next(
        node for node in document()["passes"][0]["nodes"] if node["name"] == "layers.3.attention"
    )
    names = attention["inputs"]
    assert len(names) >= 5
    assert shown.all_text_contents()[: len(names)] == [name.removeprefix("layers.3.") for name in names]
    lines = shown.evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert set(lines) == {1}, "no name is broken"
    rows = shown.evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert len(set(rows[: len(names)])) < len(names), "several stand in a line"
    shown.first.click()
    assert page.text_content("#panel h2") == names[0]


def test_30_open_layers_fit_and_only_those_in_sight_are_laid_out(viewer: Page) -> None:
    page, keys = viewer.page, viewer.page.keyboard
    keys.press("o")
    viewer.drawn()
    hidden = "all => all.filter(one => getComputedStyle(one).display === 'none').length"
    assert page.eval_on_selector_all(".inside", hidden) >= LAYERS - 3
    stage = page.locator("#stage").bounding_box()
    first, last = page.locator(".whole .box").first, page.locator(".whole .box").last
    assert not first.is_visible(), "not from near"
    keys.press("0")
    for box in (first.bounding_box(), last.bounding_box()):
        assert stage["y"] <= box["y"] < box["y"] + box["height"] <= stage["y"] + stage["height"]
    assert page.locator(".sign").all_text_contents() == [f"layer {layer}" for layer in range(LAYERS)]
    keys.press("1")
    here = "document.activeElement.querySelector('text').textContent"
    for layer in range(3):
        keys.press(".")
        assert page.evaluate(here) == f"▾ layer {layer}"
    keys.press(",")
    assert page.evaluate(here) == "▾ layer 1"
    keys.press("End")
    assert (box := page.locator("[data-name=logits]").bounding_box()) is not None
    assert stage["y"] < box["y"] < stage["y"] + stage["height"]
    rail = page.locator(".rail").bounding_box()
    page.mouse.click(rail["x"] + 6, rail["y"] + 2)
    assert page.locator("[data-name=tokens]").bounding_box()["y"] > stage["y"]


ENDS = [("pointerup", 1), ("pointercancel", 1), ("lostpointercapture", 1), ("blur", 1), ("pointermove", 0)]


@pytest.mark.parametrize("what", ["svg.drawing", "svg.rail"])
def test_a_drag_ends_however_the_pointer_goes(short: Page, what: str) -> None:
    """By its button, by the browser that takes it away, or by a button that was released out of sight."""
    short.page.click("#all")
    short.drawn()
    for end, buttons in ENDS:
        moved = short.page.evaluate(
            """([what, end, buttons]) => {
                const dragged = document.querySelector(what), scene = document.querySelector(".scene");
                const send = (target, name, y, buttons) => target.dispatchEvent(
                  new PointerEvent(name, { bubbles: true, button: 0, buttons, clientX: 40, clientY: y }));
                const places = [];
                const note = () => places.push(scene.getAttribute("transform"));
                send(dragged, "pointerdown", 100, 1); note();
                send(window, "pointermove", 160, 1); note();
                send(window, end, 160, buttons); note();
                send(window, "pointermove", 300, 1); note();
                send(window, "pointerup", 300, 0);
                return [places[0] !== places[1], places[1] === places[3],
                        document.querySelector(".dragging") === null];
            }""",
            [what, end, buttons],
        )
        assert moved == [True, True, True], end


def test_cards_of_a_layer_begin_at_its_frame(chromium: Browser, tmp_path: Path) -> None:
    """A drawing whose cards all drift to the right left half of the frame blank."""
    found = describe_model(samples.executor("llama-experts"), 24)
    with opened(chromium, render(found), tmp_path) as viewer:
        viewer.page.click("#all")
        viewer.drawn()
        viewer.page.emulate_media(media="print")
        gaps = viewer.page.eval_on_selector_all(
            ".layer",
            """all => all.map(layer => {
              const left = (one) => one.getBoundingClientRect().left;
              const frame = layer.querySelector(".frame").getBoundingClientRect();
              const cards = [...layer.querySelectorAll(".card, .port rect")];
              return (Math.min(...cards.map(left)) - frame.left) / frame.width;
            })""",
        )
        assert gaps
        assert max(gaps) < 0.1


def have_extent(page: Any) -> bool:
    boxes = page.eval_on_selector_all(
        ".life", "all => all.map(one => ['x', 'y', 'width', 'height'].map(k => Number(one.getAttribute(k))))"
    )
    return all(width > 0 and height > 0 for _, _, width, height in boxes)


def test_the_address_names_the_place(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, render(document(2)), tmp_path) as viewer:
        viewer.page.keyboard.press("]")
        viewer.find("layers.1.swiglu")
        address = viewer.page.url
        assert "node=layers.1.swiglu" in address
        other = viewer.page.context.new_page()
        other.goto(address)
        other.wait_for_selector(".node.selected")
        assert other.get_attribute(".node.selected", "data-name") == "layers.1.swiglu"
        assert other.get_attribute("#pass-1", "aria-selected") == "true"
        other.close()


def test_changes_between_two_passes_have_colours(short: Page) -> None:
    page = short.page
    page.click("#all")
    page.select_option("#overlay", "change")
    page.click("[data-view=compare]")
    left, right = ".pane:nth-child(1) ", ".pane:nth-child(2) "
    passes = document(SHORT)["passes"]
    before, after = (
        {node["name"] for node in one["nodes"] if node["op"] not in ("weight", "state")} for one in passes[:2]
    )
    assert short.names(left + ".node[data-family=removed]") == before - after != set()
    assert short.names(right + ".node[data-family=added]") == after - before
    assert "layers.0.swiglu" in short.names(right + ".node[data-family=changed]")
    assert "embedding" in short.names(right + ".node[data-family=same]")
    assert "build → fuse" in page.text_content("#legend")


def test_a_part_of_a_graph_is_drawn_with_the_names_that_come_in(chromium: Browser, tmp_path: Path) -> None:
    found = document(3)
    for one in found["passes"]:
        one["nodes"] = [node for node in one["nodes"] if node["layer"] == 1]
    with opened(chromium, render(found), tmp_path) as viewer:
        assert "layers.1.q" in viewer.names(".node"), "a single layer is open"
        ports = viewer.page.eval_on_selector_all(".port.in", "all => all.map(one => one.dataset.port)")
        assert {"layers.0.ffn_residual", "rope_table"} <= set(ports)
        viewer.page.click(".port.in >> nth=0")
        viewer.find("layers.1.swiglu")


@pytest.mark.parametrize("model", list(MODELS)[::16])
def test_architectures_are_drawn_whole(chromium: Browser, tmp_path: Path, model: str) -> None:
    found = describe_model(samples.executor(model), 24)
    found["view"] = {"pass": "build"}
    with opened(chromium, render(found), tmp_path) as viewer:
        viewer.page.check("#leaves")
        viewer.page.click("#all")
        for one in found["passes"]:
            assert viewer.names(".node") == {node["name"] for node in one["nodes"]}
            viewer.page.keyboard.press("]")
        for view in ("memory", "fusions", "compare"):
            viewer.page.click(f"[data-view={view}]")


def test_a_fused_and_an_unfused_graph_stand_side_by_side(chromium: Browser, tmp_path: Path) -> None:
    found = document(2)
    build, fuse = found["passes"][:2]
    found["passes"] = [fuse, build]
    found["view"] = {"view": "compare", "overlay": "change"}
    with opened(chromium, render(found), tmp_path) as viewer:
        page = viewer.page
        left, right = ".pane:nth-child(1) ", ".pane:nth-child(2) "
        assert page.input_value("#overlay") == "change"
        page.click("#all")
        page.keyboard.press("0")
        page.click(right + "[data-name='layers.0.silu']")
        assert viewer.names(left + ".related") == {"layers.0.swiglu"}
        page.click(left + "[data-name='layers.0.swiglu']")
        assert viewer.names(right + ".related") == {"layers.0.silu", "layers.0.swiglu"}
