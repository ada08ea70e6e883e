"""The viewer keeps all in sight: no part of the page beside a narrow window, no text beside its box."""

from __future__ import annotations

from pathlib import Path

from graphml.inspect.viewer import render
from tests.browser import Browser
from tests.inspect.chromium import document, opened


def test_a_narrow_window_has_all_of_the_page_and_scrolls_down_only(chromium: Browser, tmp_path: Path) -> None:
    found = document(2)
    del found["view"]  # opens on the last pass, whose tab is not among the first
    with opened(chromium, render(found), tmp_path, size=(390, 800)) as viewer:
        page = viewer.page
        row, tab = (page.locator(one).bounding_box() for one in ("#passes", "#passes [aria-selected=true]"))
        assert row["x"] <= tab["x"]
        assert tab["x"] + tab["width"] <= row["x"] + row["width"] + 1
        page.fill("#search", "swiglu")
        wide = """all => all.filter(one => one.getClientRects().length)
            .filter(one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"""
        parts = "header *, #passes, .beside, #panel, #stage, #legend *, #found li"
        assert page.eval_on_selector_all(parts, wide) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_sum_in_a_box_of_layers_fits_the_box(chromium: Browser, tmp_path: Path) -> None:
    timed = document(30)
    names = [node["name"] for node in timed["passes"][-1]["nodes"]]
    timed["overlays"]["time_us"] = dict.fromkeys(names, 12.3)
    del timed["view"]  # opens on the last pass, which has the times
    with opened(chromium, render(timed), tmp_path) as viewer:
        line = viewer.page.locator(".run .type")
        assert "%" in line.text_content()
        text, box = line.bounding_box(), viewer.page.locator(".run .box").last.bounding_box()
        assert text["x"] + text["width"] <= box["x"] + box["width"]


def test_a_window_that_is_made_narrow_shows_the_pass_and_fits_the_drawing_again(
    chromium: Browser, tmp_path: Path
) -> None:
    found = document(2)
    del found["view"]
    with opened(chromium, render(found), tmp_path) as viewer:
        page = viewer.page
        page.set_viewport_size({"width": 420, "height": 800})
        row, tab = (page.locator(one).bounding_box() for one in ("#passes", "#passes [aria-selected=true]"))
        assert row["x"] <= tab["x"]
        assert tab["x"] + tab["width"] <= row["x"] + row["width"] + 1
        inner, outer = (page.locator(one).first.bounding_box() for one in (".scene", ".drawing"))
        middle, wanted = (box["x"] + box["width"] / 2 for box in (inner, outer))
        assert abs(middle - wanted) < 30
        page.mouse.move(outer["x"] + 20, outer["y"] + outer["height"] - 20)
        page.mouse.down()
        page.mouse.move(outer["x"] + 60, outer["y"] + outer["height"] - 20)
        page.mouse.up()
        moved = page.locator(".scene").first.get_attribute("transform")
        page.set_viewport_size({"width": 430, "height": 800})
        assert page.locator(".scene").first.get_attribute("transform") == moved  # a person has put it there


def test_large_values_of_the_memory_have_their_names(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, render(document(2)), tmp_path) as viewer:
        viewer.page.get_by_role("radio", name="Memory").click()
        boxes = viewer.page.locator(".life")
        assert boxes.count() > 2
        names = viewer.page.locator(".life-name").all_text_contents()
        assert names
        for name in viewer.page.locator(".life-name").all():
            text = name.bounding_box()
            assert any(
                box["x"] <= text["x"] and text["x"] + text["width"] <= box["x"] + box["width"]
                for box in (each.bounding_box() for each in boxes.all())
            )
