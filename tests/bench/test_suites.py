"""Suites: what they hold, how rows are judged, and one run on a model whole."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import plots, suite_run
from benchmarks.suite_run import Judged, run_cases
from benchmarks.suites import DEFAULT_MODEL, SUITES, Case, Goal, suite_named
from graphml.bench.describe import sha256
from graphml.bench.job import Job
from graphml.bench.shapes import SHAPES
from graphml.bench.test_plan import Test
from graphml.errors import UsageError
from graphml.weights.type_mixes import file_type
from tests import tiny_model
from tests.bench.results import ENVIRONMENT, row
from tests.looped import looped


def case(*goals: Goal) -> Case:
    return Case("a", "", "", Test(0, 100), goals)


def test_every_case_can_be_made() -> None:
    for suite in SUITES.values():
        for one in suite.cases:
            if one.shape != DEFAULT_MODEL:
                assert one.test.n_ctx <= SHAPES[one.shape].n_ctx
                assert file_type(one.type).name == one.type
    with pytest.raises(UsageError, match="suite: wanted one of targets"):
        suite_named("none")
    assert suite_named("serve", ["1 client*"]).loads == SUITES["serve"].loads[:3]
    with pytest.raises(UsageError, match=r"--case: wanted a pattern of 1 client, 1 client, shared prefix, "):
        suite_named("serve", ["x"])
    assert [one.test.name for one in suite_named("targets", ["*Q4_0", "16k*"]).cases] == [
        "pp512", "tg64", "tg16 @ d16384",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"--case: wanted a pattern of fp32, q8, q4; got x"):
        suite_named("das", ["x"])

    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    table = page.split("## Suites")[1].split("## ")[0]
    assert re.findall(r"(?m)^\| `(\w+)` \|", table) == list(SUITES)


def test_the_batch_suite_samples_in_one_engine_beside_llama_cpp() -> None:
    suite = SUITES["batch"]
    assert suite.peers
    assert [one.test for one in suite.cases] == [
        Test(0, 32, 64, count, sampled=True) for count in (1, 2, 4, 8, 16, 32)
    ]
    assert suite.cases[2].test.name == "tg32 x4 sampled @ d64"


def test_phi_2_is_measured_on_any_number_of_threads() -> None:
    found = [one for one in SUITES["targets"].cases if one.shape == "phi-2"]
    assert [(one.test.name, one.threads) for one in found] == [("tg64", ()), ("pp16", ())]


def test_the_specified_harness_has_its_numbers() -> None:
    found = {
        one.name: (one.test.n_prompt, one.test.n_gen, one.repetitions) for one in SUITES["realizar"].cases
    }
    assert found == {"SHORT_CONTEXT": (3, 0, 10), "LONG_CONTEXT": (2048, 0, 5), "DECODE_SINGLE": (0, 1, 100)}


@looped(
    ("goals", "verdict"),
    [
        ((), ""),
        ((Goal("ratio", 3.0), Goal("t/s", 100.0)), "PASS"),
        ((Goal("ratio", 3.01),), "short: ratio"),
        ((Goal("t/s", 101.0), Goal("of bandwidth", 0.6)), "short: t/s, of bandwidth"),
        ((Goal("t/s", 101.0, Goal("of bandwidth", 0.5)),), "PASS"),
        ((Goal("ms", 1000.0),), "PASS"),
        ((Goal("ms", 999.0),), "short: ms"),
        ((Goal("ms", 999.0, threads=3),), ""),
    ],
)
def test_verdicts(goals: tuple[Goal, ...], verdict: str) -> None:
    one = Judged(case(*goals), row(ns=[10**9] * 3, peer=[3 * 10**9] * 3))
    assert one.verdict == verdict
    assert (one.named.suite_case, one.named.verdict) == ("a", verdict)


def test_what_is_too_noisy_passes_nothing() -> None:
    made = row(ns=[10, 10, 100, 1000, 1000])
    one = Judged(case(Goal("t/s", 1.0), Goal("ms", 1e9)), made)
    assert one.verdict == "too noisy"
    text = "".join(suite_run.markdown([one]))
    assert [cell.strip() for cell in text.splitlines()[2].split("|")[4:6]] == ["too noisy", ""]
    assert "too noisy: the quartiles" in text


def test_the_table() -> None:
    one = Judged(case(Goal("t/s", 25.0, Goal("of bandwidth", 0.85))), row(ns=[10**9] * 3))
    head, rule, line, *_ = "".join(suite_run.markdown([one])).splitlines()
    assert len(head) == len(rule) == len(line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:8] == ["a", "2", "tg100", "100.00 ± 0.00", "1000.0", "0", "50%", "memory"]
    assert cells[8:] == ["", "", "t/s 25 or of bandwidth 85%", "PASS"]
    other = row(ns=[2 * 10**9] * 3)
    line = "".join(suite_run.markdown([replace(one, others=(other,))])).splitlines()[2]
    assert line.split("|")[10].strip() == "50.00 ± 0.00"


def test_cases_are_run_with_their_threads_and_beside_busy_processes(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    asked: list[tuple[str, str]] = []

    def models(shape: str, type: str) -> str:
        asked.append((shape, type))
        return str(path)

    prompt, tokens = Test(4, 0), Test(0, 2)
    cases = [
        Case("prompt", "one", "Q8_0", prompt, repetitions=1),
        Case("tokens", "one", "Q8_0", tokens, (Goal("ratio", 0.0),), repetitions=1),
        Case("in fp32", "one", "Q8_0", tokens, repetitions=1, quant="fp32", threads=(1,)),
        Case("busy", "two", "F16", tokens, (Goal("ratio", 0.0),), repetitions=1, threads=(2,), busy=1),
    ]
    base = Job([], [], [("graphml", "cpu")], ENVIRONMENT, warm=False, hashed=True)
    found = list(run_cases(cases, [1, 2], models, base))
    assert [(one.case.name, one.row.n_threads, one.row.test, one.row.quant) for one in found] == [
        ("prompt", 1, "pp4", ""), ("tokens", 1, "tg2", ""), ("in fp32", 1, "tg2", "fp32"),
        ("prompt", 2, "pp4", ""), ("tokens", 2, "tg2", ""), ("busy", 2, "tg2", ""),
    ]  # fmt: skip
    assert asked == [("one", "Q8_0"), ("one", "Q8_0"), ("one", "Q8_0"), ("two", "F16")]
    assert found[-1].row.peer == "one thread"
    assert [[other.backends for other in one.others] for one in found] == [[]] * 5 + [["one thread"]]
    assert found[-1].others[0].suite_case == "busy"
    assert {one.row.model_sha256 for one in found} == {sha256(path)}
    assert all(one.row.test_time.startswith("20") for one in found)
    assert found[-1].verdict == "PASS"
    assert found[1].verdict == "PASS"  # 0 is reached without a peer too


def test_a_side_whose_figures_are_all_refused_has_no_picture(tmp_path: Path) -> None:
    refused = replace(row(ns=[10, 10, 100, 1000, 1000]), backends="llama.cpp")
    assert refused.refused
    assert [one.name for one in plots.draw_bars(tmp_path, [row(), refused])] == ["speed-cpu.png"]


def test_lines_of_a_picture_differ_in_nothing_else() -> None:
    made = [
        row(Test(0, 8, depth), ns=[depth + 1] * 3, threads=threads) for depth in (64, 0) for threads in (1, 2)
    ]
    made.append(row(Test(8, 0, 0)))
    found = plots.lines(made, "n_depth")
    assert [(text, [x for x, *_ in points]) for text, points in found] == [
        ("tg8, cpu, threads 1", [0.0, 64.0]),
        ("tg8, cpu, threads 2", [0.0, 64.0]),
    ]
    assert [text for text, _ in plots.lines(made, "n_threads")] == ["tg8, cpu, depth 64", "tg8, cpu, depth 0"]
    assert plots.lines([replace(made[0], n_depth=1)], "n_depth") == []
