"""The page of stored rows: whole, escaped, without references; and in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarks.bar_charts import Bar, chart
from benchmarks.results_page import main, page
from graphml.bench.logit_check import WRONG
from graphml.bench.result_rows import ResultRow
from graphml.bench.row_formats import TOO_NOISY, json_array
from graphml.bench.test_plan import Test
from graphml.errors import UsageError
from tests.bench.results import made_rows, row
from tests.browser import Browser
from tests.inspect.chromium import opened

HOSTILE = "</script><img src=x onerror=\"alert(1)\"> & 'q'"
WILD = (10, 10, 100, 1000, 1000)
VOID = {"meta", "rect", "line", "br"}


def rows() -> list[ResultRow]:
    """Two sides, both kinds of tests, one figure that is none, and a model with a hostile name."""
    found = [*made_rows(Test(512, 0), [100, 110, 120], [300, 310, 320])]
    found += made_rows(Test(0, 64), [100, 110, 120], [130, 140, 150])
    found.append(row(Test(0, 64, 16), ns=WILD, peer=[100] * 5))
    return [replace(one, model_type=HOSTILE, device="llvmpipe", driver=HOSTILE) for one in found]


def text(found: list[ResultRow]) -> str:
    return "".join(page(found, ["ratio"], ["graphml bench -m 'a b.gguf'"]))


def test_rows_of_several_models_say_whose_they_are() -> None:
    """Charts of speeds are of one model each; that of the ratios and the list of rounds are of all."""
    found = list(made_rows(Test(0, 64), [100, 110, 120], [130, 140, 150]))
    models = ("llama 1B Q4_0", "phi 2.8B Q8_0")
    told = text([replace(one, model_type=model) for model in models for one in found])
    for part in (told.split("Speed in proportion to")[-1].split("</figure>")[0], told.split("<details>")[1]):
        assert all(model in part for model in models)
    assert "llama 1B Q4_0" not in text([replace(one, model_type=models[1]) for one in found])
    assert f"{found[0].test}, {found[0].backends}</text>" in told


def test_the_chart_of_ratios_has_every_side_but_the_peer() -> None:
    """Of cpu, a second side of graphml and llama.cpp; a side whose logits are wrong has none."""
    ours, theirs = made_rows(Test(0, 64), [100, 110, 120], [200, 220, 240])
    second = replace(ours, backends="cpu avx2", side=1, ratio=0.5, ratio_q1=0.5, ratio_q3=0.5)
    for second_one, shown in ((second, "0.50 ± 0.00"), (replace(second, refused="ratio"), TOO_NOISY)):
        told = text([ours, second_one, replace(theirs, side=2)])
        chart_of_ratios = told.split("<h2>Speed in proportion to llama.cpp")[1].split("</figure>")[0]
        assert "2.00 ± 0.00" in chart_of_ratios
        assert f"{second.test}, cpu avx2" in chart_of_ratios
        assert shown in chart_of_ratios
    wrong = replace(second, correct=WRONG, peer="", ratio=0.0)
    told = text([ours, wrong, replace(theirs, side=2)])
    assert "cpu avx2" not in told.split("<h2>Speed in proportion to llama.cpp")[1].split("</figure>")[0]
    assert f">{WRONG}</text>" in told.split("<h2>Generating")[1].split("</figure>")[0]


class Reader(HTMLParser):
    """Holds that tags are closed in order; keeps attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_names_are_escaped() -> None:
    found = text(rows())
    reader = Reader()
    reader.feed(found)
    assert reader.open == []
    assert not reader.tags & {"script", "img", "link", "iframe", "a", "object"}
    assert not reader.attributes & {"src", "href", "onerror", "style"}
    assert "url(" not in found
    assert "&lt;/script&gt;&lt;img" in found
    assert "default-src 'none'" in found


def test_the_page_holds_figures_machine_commit_command_and_rounds() -> None:
    found, made = text(rows()), rows()
    for one in made[:4]:
        assert f"{one.median_ts:.2f} ± " in found
        for value in one.samples_ts:
            assert f"{value:.2f}" in found
    assert "A &quot;fast&quot;, one | CPU&#x27;s, 2 logical processors" in found
    assert "<dt>Commit of graphml</dt><dd>abc</dd>" in found
    assert "graphml bench -m &#x27;a b.gguf&#x27;" in found
    assert '<th scope="col" class="number">ratio to llama.cpp</th>' in found
    assert "too noisy: the quartiles" in found
    assert "<dt>Energy</dt>" not in found
    assert found.count("<svg") == 3  # prompt, generation, ratio


def test_a_suite_s_cases_are_named_and_judged() -> None:
    found = text([replace(row(), suite_case="phi-2", wanted="t/s 25", verdict="PASS")])
    assert '<th scope="col">verdict</th>' in found
    assert "<td>phi-2</td>" in found


def test_the_command_reads_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "rows.json"
    stored.write_text("".join(json_array(rows())), encoding="utf-8")
    main([str(stored), "--command", "graphml bench -m 'a b.gguf'"])
    assert capsys.readouterr().out == text(rows())
    stored.write_text("[{}]")
    with pytest.raises(UsageError, match=r"rows.json: wanted the JSON of"):
        main([str(stored)])


def test_bars_begin_at_zero_and_roofs_far_away_are_left_out() -> None:
    bars = [Bar("a", "50", 0, 50.0, 40.0, 60.0, 100.0), Bar("b", "25", 1, 25.0, 25.0, 25.0, 1e9)]
    bars.append(Bar("c", "too noisy", 2, None))
    widths = re.findall(r'class="side\d" x="0" y="\d+" width="([\d.]+)%"', chart(bars, "speed"))
    assert [round(float(one)) for one in widths] == [49, 25]
    assert chart(bars, "speed").count('class="mark"') == 1


def test_in_a_browser_nothing_overflows_and_nothing_is_fetched(chromium: Browser, tmp_path: Path) -> None:
    for width, scheme in ((390, "dark"), (1280, "light")):
        with opened(chromium, text(rows()), tmp_path, ready="main", color_scheme=scheme) as shown:
            shown.page.set_viewport_size({"width": width, "height": 900})
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
            grounds = shown.page.evaluate(
                "[document.body, document.querySelector('figure')]"
                ".map(one => getComputedStyle(one).backgroundColor)"
            )
            assert len(set(grounds)) == 2  # the style was let in by the page's policy
            assert shown.page.locator("figure .side0").first.bounding_box()["width"] > 100
    named = [replace(one, model_type="llama 1B Q4_0", driver="Vulkan, Mesa " * 9) for one in rows()[:4]]
    with opened(chromium, text(named), tmp_path, ready="main") as shown:
        shown.page.set_viewport_size({"width": 1280, "height": 900})
        hidden = "one => one.scrollWidth - one.clientWidth"
        assert shown.page.locator(".rows .wide").evaluate(hidden) <= 0, "a device may take several lines"
