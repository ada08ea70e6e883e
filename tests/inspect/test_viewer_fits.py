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
