"""The viewer without a mouse: everything is reached, has a name, and shows where the focus is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphml.inspect.viewer import render
from tests.browser import Browser
from tests.inspect.chromium import Page, document, opened

DOCS = Path(__file__).parents[2] / "docs"
FOCUS = """() => {
  const one = document.activeElement;
  const shape = one.querySelector(".card, .box, .hit");
  const seen = shape ? getComputedStyle(shape) : getComputedStyle(one);
  return {
    id: one.id || one.dataset.view || one.dataset.name || one.getAttribute("class") || one.tagName,
    seen: shape ? parseFloat(seen.strokeWidth) >= 3
      : seen.outlineStyle !== "none" && parseFloat(seen.outlineWidth) >= 2,
  };
}"""


@pytest.fixture
def viewer(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    with opened(chromium, render(document(4)), tmp_path, reduced_motion="reduce") as page:
        yield page


def test_tab_reaches_every_part_and_shows_where_it_is(viewer: Page) -> None:
    reached = []
    for _ in range(12):
        viewer.page.keyboard.press("Tab")
        focus = viewer.page.evaluate(FOCUS)
        if focus["id"] == "BODY":
            break
        assert focus["seen"], focus
        reached.append(focus["id"])
    assert reached[:7] == ["skip", "search", "drawing", "overlay", "leaves", "pass-0", "all"]
    assert reached[7] in viewer.names(".node"), "the drawing is one stop"


def test_a_whole_visit_by_keyboard(viewer: Page) -> None:
    page, keys = viewer.page, viewer.page.keyboard
    page.focus("#pass-0")
    keys.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "pass-1"
    assert page.get_attribute("#pass-1", "aria-selected") == "true"
    keys.press("Home")
    page.focus(".node[data-name=embedding]")
    keys.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('class')").startswith("run")
    keys.press("Enter")
    assert "layers.0.q" in viewer.names(".node")
    viewer.find("layers.0.q")
    assert page.evaluate(FOCUS) == {"id": "layers.0.q", "seen": True}
    keys.press("ArrowDown")
    assert page.evaluate(FOCUS) == {"id": "layers.0.reshape", "seen": True}
    assert page.get_attribute("[data-name='layers.0.reshape']", "aria-pressed") == "true"
    assert page.text_content("#status") == "layers.0.reshape chosen"
    keys.press("ArrowUp")
    assert viewer.names(".node.selected") == {"layers.0.q"}
    keys.press("Escape")
    assert not viewer.names(".node.selected")
    before = page.get_attribute(".scene", "transform")
    keys.press("+")
    assert page.get_attribute(".scene", "transform") != before


def test_everything_to_press_has_a_name_and_roles_are_whole(viewer: Page) -> None:
    viewer.page.click("#all")
    viewer.find("layers.0.swiglu")
    viewer.drawn()
    nameless = viewer.page.evaluate("""() =>
      [...document.querySelectorAll("button, input, select, [role], svg")]
      .filter(one => !one.closest("[hidden], [aria-hidden]") && !["status", "search"].includes(one.role))
      .filter(one => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
      .map(one => one.outerHTML.slice(0, 90))""")
    assert nameless == []
    assert viewer.page.locator("[role=tablist] [role=tab][tabindex='0']").count() == 1
    assert viewer.page.locator(".drawing [tabindex='0']").count() == 1
    assert viewer.page.locator("[role=tab][aria-selected=true]").count() == 1


def test_the_page_and_the_docs_name_the_same_keys(viewer: Page) -> None:
    page = viewer.page
    page.keyboard.press("?")
    assert page.evaluate("document.activeElement.textContent") == "Close"
    named = set(page.locator("#keys kbd").all_text_contents())
    page.keyboard.press("]")
    assert page.get_attribute("#pass-0", "aria-selected") == "true", "keys wait"
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys")
    table = (DOCS / "viewer.md").read_text(encoding="utf-8").partition("## Keys")[2].partition("\n\n")[0]
    told = set(re.findall(r"`([^`]+)`|(Enter|Esc|PageDown|PageUp|Home|End)", table.partition("|---")[2]))
    assert {code or word for code, word in told} | set("←↑↓→") == named | set("←↑↓→")
    assert "arrows" in table


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    contrast = """() => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      const light = (colour) => {
        canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => {
        const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
        return (high + 0.05) / (low + 0.05);
      };
      return [...document.querySelectorAll(".node")].flatMap((node) => {
        const ground = getComputedStyle(node.querySelector(".card")).fill;
        return [...node.querySelectorAll("text")].map((text) => ratio(getComputedStyle(text).fill, ground));
      });
    }"""
    with opened(
        chromium, render(document(2)), tmp_path, color_scheme=scheme, reduced_motion="reduce"
    ) as viewer:
        viewer.page.click("#all")
        viewer.drawn()
        for overlay in ("family", "bytes", "change"):
            viewer.page.select_option("#overlay", overlay)
            assert min(viewer.page.evaluate(contrast)) >= 4.5, overlay
