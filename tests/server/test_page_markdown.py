"""How the page reads markdown: what becomes what, and that no text keeps the page busy."""

from __future__ import annotations

import pytest

from tests.browser import Browser
from tests.server.scripted_server import Script
from tests.server.test_page import opened

READ = """async (text) => {
  const { markdown } = await import("./page/markdown.js");
  const all = document.createElement("div");
  for (const node of markdown(text)) all.append(node);
  return [all.innerHTML, all.textContent.length];
}"""

WRITTEN = {
    "**a** *b* __c__ _d_ ~~e~~": "<strong>a</strong> <em>b</em> <strong>c</strong> <em>d</em> <del>e</del>",
    "**a *b* c** d": "<strong>a <em>b</em> c</strong> d",
    "a_b_c 2*3*4 x ** y": "a_b_c 2<em>3</em>4 x ** y",
    "`a` ``b`c`` ```d": "<code>a</code> <code>b`c</code> ```d",
    "`` ` ``": "<code>`</code>",
    "**a": "**a",
    r"\*a\* \\ \d": r"*a* \ \d",
    "[a](http://x.org) [b](x.org) [c] [d](": (
        '<a href="http://x.org" target="_blank" rel="noopener noreferrer nofollow">a</a> b [c] [d]('
    ),
    "see http://x.org/a_b_c, ok": (
        'see <a href="http://x.org/a_b_c" target="_blank" rel="noopener noreferrer nofollow">'
        "http://x.org/a_b_c</a>, ok"
    ),
    "a  \nb\nc": "a<br>b\nc",
    "costs $5 or $6": "costs $5 or $6",
}  # fmt: skip
STARTS = (
    "**a ", "*a ", "_a ", "__a ", "~~a ", "`a ", "``a` ", "[", "[a](", "![", "$a ", "\\(a ", "\\[a ", "$$a ",
    "**_", "*_*_", "\\", "***", "_*", "  ", "\n> ", "\n  - ", "|-", "- ", "$x^{",
)  # fmt: skip


def test_texts_become_elements(chromium: Browser) -> None:
    with opened(chromium, Script()) as page:
        for text, wanted in WRITTEN.items():
            html, _ = page.evaluate(READ, text)
            assert html == f"<p>{wanted}</p>", text
        html, _ = page.evaluate(READ, "## a b ##\n### c #d\n- - -\n")
        assert html == "<h4>a b</h4><h5>c #d</h5><hr>"
        html, _ = page.evaluate(READ, "  | a | b |\n  |:--|--:|\n| 1 | 2 |")
        assert html.count("<td") == 2


@pytest.mark.parametrize("size", [200_000])
def test_no_text_keeps_the_page_busy(chromium: Browser, size: int) -> None:
    """Ten times what took a page minutes: each is read in a few passes, or this takes hours."""
    runs, fence = "", "```" + " " * size + "`"
    for length in range(1, 600):
        runs += "`" * length + " "
    odd = (runs, fence, "# a" + " #" * (size // 2) + " x", " " * size + "x", "|\n" + " " * size + "x")
    with opened(chromium, Script()) as page:
        page.set_default_timeout(60_000)
        for text in (*(start * (size // len(start)) for start in STARTS), *odd):
            _, length = page.evaluate(READ, text)
            assert isinstance(length, int)
