"""The viewer's file: complete, small, and deaf to what hostile names ask for."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from graphml.inspect.viewer import render
from tests.browser import Browser
from tests.inspect.chromium import document, opened

ASSETS = Path(__file__).parents[2] / "graphml" / "inspect" / "viewer" / "assets"
FORBIDDEN = [
    "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "fetch(",
    "XMLHttpRequest", "WebSocket", "@import", "url(", "import(",
]  # fmt: skip
HOSTILE = [
    "<img src=x onerror=window.hit=1>",
    "</script><script>window.hit=1</script>",
    "\"'><svg onload=window.hit=1>",
    "javascript:window.hit=1",
    "%%SCRIPT%%",
    "__proto__",
    "constructor",
    "#run 0",
    "\u202ereversed",
]


def held(html: str) -> Any:
    """The document inside a page, unpacked as the page does it."""
    text = re.search(r'id="document">([A-Za-z0-9+/=]*)<', html)
    assert text is not None
    packed = json.loads(zlib.decompress(base64.b64decode(text[1]), -15))
    found, values = packed["document"], packed["values"]
    for one in found["passes"]:
        nodes: list[dict[str, Any]] = [{} for _ in range(one.pop("size"))]
        columns = one.pop("columns")
        for key, column in columns.items():
            for node, place in zip(nodes, column, strict=True):
                node[key] = place if key == "inputs" else values[place]
        for node in nodes:
            node["inputs"] = [nodes[at]["name"] if isinstance(at, int) else at for at in node["inputs"]]
        one["nodes"] = nodes
    return found


def test_the_document_is_there_whole() -> None:
    found = document()
    assert held(render(found)) == found


def test_3000_nodes_stay_under_a_megabyte() -> None:
    html = render(document(88))
    assert len(document(88)["passes"][0]["nodes"]) > 3000
    print(f"{len(html)} bytes")
    assert len(html.encode()) < 1_000_000


def test_numbers_that_json_lacks_become_text() -> None:
    found = document(1)
    found["overlays"] = {"nmse": {"logits": float("nan")}}
    assert held(render(found))["overlays"] == {"nmse": {"logits": "nan"}}


@pytest.mark.parametrize(
    "wrong", [{}, {"format": "graphml-9", "passes": [1]}, {"format": "graphml-1", "passes": []}]
)
def test_what_is_no_document_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="document: wanted"):
        render(wrong)


def test_the_assets_make_no_markup_and_ask_for_nothing() -> None:
    for path in ASSETS.iterdir():
        text = path.read_text(encoding="utf-8")
        for word in FORBIDDEN:
            assert word not in text, (path.name, word)
        addresses = re.findall(r"https?://[^\"' ]*", text)
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}


def test_hostile_names_stay_text(chromium: Browser, tmp_path: Path) -> None:
    found = document(2)
    text = json.dumps(found)
    for place, name in enumerate(HOSTILE):
        old = [
            "embedding",
            "tokens",
            "positions",
            "logits",
            "rope_table",
            "layers.0.q",
            "layers.0.k",
            "layers.0.v",
            "cells",
        ][place]
        text = text.replace(json.dumps(old), json.dumps(name))
    found = json.loads(text)
    found["model"] = HOSTILE[1]
    found["backend"] = HOSTILE[0]
    found["versions"] = {HOSTILE[0]: HOSTILE[1]}
    found["overlays"] = {"time_us": dict.fromkeys(HOSTILE, 1.0)}
    found["fusions"]["refused"] = [
        {"fusion": HOSTILE[0], "node": name, "at": name, "reason": HOSTILE[2]} for name in HOSTILE
    ]
    for node in found["passes"][0]["nodes"]:
        node["source"], node["attributes"], node["fallback"] = (
            HOSTILE[1],
            {HOSTILE[0]: HOSTILE[2]},
            HOSTILE[0],
        )
    found["passes"][1]["name"], found["passes"][1]["title"] = HOSTILE[0], HOSTILE[1]
    found["difference"] = [
        {"kind": "changed", "left": name, "right": name, "facts": [[HOSTILE[0], HOSTILE[1], [HOSTILE[2]]]]}
        for name in HOSTILE
    ]
    with opened(chromium, render(found), tmp_path) as viewer:
        page = viewer.page
        page.click("#all")
        shown = viewer.names(".node")
        for name in HOSTILE:
            assert name in shown
            viewer.find(name)
            assert page.text_content("#panel h2") == name
        page.fill("#search", HOSTILE[0])
        page.keyboard.press("Escape")
        for view in ("compare", "table", "memory", "fusions", "drawing"):
            page.click(f"[data-view={view}]")
        page.click("[data-view=compare]")
        page.select_option("#overlay", "change")
        page.keyboard.press("Escape")
        assert HOSTILE[0] in page.text_content("#panel")
        page.keyboard.press("n")
        assert f"{HOSTILE[1]} → " in page.text_content("#panel")
        assert page.evaluate("window.hit") is None
        assert page.locator("img, #stage script").count() == 0
        assert page.text_content("h1") == HOSTILE[1]


def test_the_policy_stops_foreign_scripts_and_the_network(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, render(document(1)), tmp_path) as viewer:
        viewer.page.evaluate("""() => {
          const script = document.createElement("script");
          script.textContent = "window.hit = 1";
          document.body.append(script);
          const image = document.createElement("img");
          image.src = "https://example.invalid/pixel.png";
          document.body.append(image);
        }""")
        reached = viewer.page.evaluate("fetch('https://example.invalid/').then(() => true, () => false)")
        assert viewer.page.evaluate("window.hit") is None
        assert reached is False
        blocked = [text for text in viewer.complaints if "Content Security Policy" in text]
        assert len(blocked) >= 3
        viewer.complaints.clear()
        viewer.requests[:] = viewer.requests[:1]
