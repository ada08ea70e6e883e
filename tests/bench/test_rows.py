"""Benchmarks without a model: what is asked for, who takes turns, and how rows come out."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace

import pytest

from graphml.bench import test_plan as plan
from graphml.bench.bench_options import pairs, whole_numbers, words
from graphml.bench.compared_results import compare, left_over, markdown
from graphml.bench.measure import Measured, Round, measure, order, warm_up
from graphml.bench.result_rows import SCALARS, Context, ResultRow, quartiles, rows
from graphml.bench.row_formats import FORMATS, TABLE
from graphml.bench.test_plan import Test
from graphml.errors import BackendError, UsageError
from graphml.ir.work import Work
from tests.bench.results import ENVIRONMENT, FakeSide, made_rows, row
from tests.looped import looped

LAVAPIPE = {"name": "llvmpipe", "kind": "processor", "driver": "Vulkan, Mesa 22.3.6"}
LLAMA_BENCH = (
    "| model                          |       size |     params | backend    | threads |            test | "
    "                 t/s |",
    "| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | "
    "-------------------: |",
    "| llama 1.1B Q4_0                | 606.53 MiB |     1.10 B | cpu        |       2 |           tg100 | "
    "       100.00 ± 0.00 |",
)


@looped(
    ("given", "wanted"),
    [
        (["512"], [512]),
        (["1,2", "4"], [1, 2, 4]),
        (["1-4"], [1, 2, 3, 4]),
        (["512-2048+512,7"], [512, 1024, 1536, 2048, 7]),
        (["1-32*2"], [1, 2, 4, 8, 16, 32]),
        (["5-6+10"], [5]),
        (["0"], [0]),
    ],
)
def test_lists_and_ranges(given: list[str], wanted: list[int]) -> None:
    assert whole_numbers("-p", given) == wanted


@looped("wrong", ["", "x", "1-", "-1", "4-1", "1-4+0", "1-9*1", "0-9*2", "1--4", "1,,2", "9" * 12])
def test_other_spellings_are_told(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"-p: "):
        whole_numbers("-p", [wrong])
    with pytest.raises(UsageError, match="at most 4096 values"):
        whole_numbers("-p", ["1-100000"])


def test_pairs_and_words() -> None:
    assert pairs("-pg", ["512,128", "1,2"]) == [(512, 128), (1, 2)]
    assert words("-m", ["a, b", "c", ""]) == ["a", "b", "c"]
    for wrong in ("512", "1,2,3", "1,0"):
        with pytest.raises(UsageError, match="-pg: wanted"):
            pairs("-pg", [wrong])


def test_tests_come_in_llama_bench_s_order_and_have_its_names() -> None:
    made = plan.tests([512, 0], [128], [(8, 4)], [0, 64], [1, 4])
    assert [one.name for one in made[:6]] == [
        "pp512", "tg128", "pp8+tg4", "pp512 @ d64", "tg128 @ d64", "pp8+tg4 @ d64",
    ]  # fmt: skip
    assert made[6].name == "pp512 x4"
    assert (made[-1].name, made[-1].n_tokens, made[-1].n_ctx) == ("pp8+tg4 x4 @ d64", 48, 76)


def test_settings_are_all_combinations() -> None:
    made = plan.settings(["a", "b"], [1, 2], [2048, 64], [512], [("f16", "f16")])
    assert len(made) == 8
    assert [(one.model, one.n_batch, one.n_ubatch, one.threads) for one in made[:3]] == [
        ("a", 2048, 512, 1), ("a", 2048, 512, 2), ("a", 64, 64, 1),
    ]  # fmt: skip


def measured(log: list[str], ours: list[int], theirs: list[int], warm: bool = False) -> Round:
    sides = [FakeSide("cpu", log, ours), FakeSide("llama.cpp", log, theirs)]
    told: list[tuple[str, int, int]] = []
    (found,) = measure(
        sides, [Test(8, 0)], 4, lambda: float(len(log)), warm, settle_s=0.0,
        progress=lambda *report: told.append(report),
    )  # fmt: skip
    assert told == [("bench", done, 4) for done in range(5)]
    return found


def test_sides_take_turns_and_none_always_comes_after_the_other() -> None:
    log: list[str] = []
    found = measured(log, [10, 20, 30, 40], [20, 20, 90, 40])
    assert log[:2] == ["cpu prepares pp8", "llama.cpp prepares pp8"]
    a, b = "cpu", "llama.cpp"
    assert log[2:] == [a, b, b, a, a, b, b, a]
    assert found.ratios(1) == [2.0, 1.0, 3.0, 1.0]
    assert found.sides[0].ns == (10, 20, 30, 40)
    assert found.sides[0].bandwidth == 8.0  # the best of those asked between the rounds
    assert [order(3, turn) for turn in range(2)] == [[0, 1, 2], [2, 1, 0]]


def test_a_device_s_own_memory_bounds_it_and_not_the_host_s() -> None:
    log: list[str] = []
    sides = [FakeSide(name, log, [1]) for name in ("cpu", "gpu", "unknown")]
    sides[1].on_host = sides[2].on_host = False
    sides[2].bandwidth = lambda: 0.0  # type: ignore[method-assign]
    (found,) = measure(sides, [Test(8, 0)], 1, lambda: 7.0, warm=False, settle_s=0.0)
    assert [one.bandwidth for one in found.sides] == [7.0, 5e9, 0.0]
    assert found.sides[2].bound == {}
    (found,) = measure(sides, [Test(8, 0)], 1, None, warm=False, settle_s=0.0)
    assert [one.bandwidth for one in found.sides] == [0.0] * 3


def on_three_sides() -> list[ResultRow]:
    """Rows of the processor, of a device that takes four times as long, and of another engine."""
    log: list[str] = []
    sides = [FakeSide("cpu", log, [1]), FakeSide("wgpu", log, [4]), FakeSide("llama.cpp", log, [2])]
    sides[1].about |= {"engine_version": "cpu 1", "device": {**LAVAPIPE}}
    found = Round(
        Test(8, 0),
        (
            Measured(sides[0], Test(8, 0), (10, 10), Work(100, 100), bandwidth=2e10),
            Measured(sides[1], Test(8, 0), (40, 40), Work(100, 100)),
            Measured(sides[2], Test(8, 0), (20, 20), Work(100, 100), bandwidth=2e10),
        ),
    )
    setting = plan.SideParameters("graphml", "m.gguf", "cpu", 2)
    return rows(found, Context(setting, [one.about for one in sides], ENVIRONMENT, ""))


def test_every_row_names_its_device_and_has_a_ratio_to_the_other_engine() -> None:
    made = on_three_sides()
    assert [(one.side, one.peer, one.ratio) for one in made] == [
        (0, "llama.cpp", 2.0), (1, "llama.cpp", 0.5), (2, "", 0.0),
    ]  # fmt: skip
    assert {one.judge for one in made} == {"llama.cpp"}
    host = (ENVIRONMENT.cpu_info, "processor", "")
    assert [(one.device, one.device_kind, one.driver) for one in made] == [
        host, (LAVAPIPE["name"], "processor", LAVAPIPE["driver"]), host,
    ]  # fmt: skip
    assert [one.of_bandwidth > 0 for one in made] == [True, False, True]
    text = "".join(FORMATS["md"](made, ["ratio"]))
    lines = [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines()[2:5]]
    assert (lines[1][8], lines[1][-1]) == ("", "0.50 ± 0.00 |")  # no share of the host's bandwidth
    assert text.splitlines()[0].endswith("ratio to llama.cpp |")
    (below,) = [line for line in text.splitlines() if line.startswith("wgpu: lavapipe")]
    assert below.startswith('wgpu: lavapipe on A "fast", one')
    assert "(processor; Vulkan, Mesa" in below
    records = as_records(*made)
    assert [round(one.a, 2) for one in compare(records, records, "ratio")] == [2.0, 0.5]
    former = [{name: value for name, value in one.items() if name != "judge"} for one in records]
    assert [round(one.a, 2) for one in compare(former, former, "ratio")] == [2.0]


def test_a_figure_with_a_spread_larger_than_itself_is_refused() -> None:
    wild, calm = [10, 10, 100, 1000, 1000], [100] * 5
    found = row(ns=wild, peer=calm)
    assert found.refused == "t/s, ratio"
    assert row(ns=calm, peer=wild).refused == "ratio"
    assert row(ns=calm).refused == ""
    text = "".join(FORMATS["md"]([found], ["ratio"]))
    line = [cell.strip() for cell in text.splitlines()[2].strip("|").split(" | ")]
    assert line[6:12] == ["too noisy", "", "", "", "", ""]
    assert line[13] == "too noisy"
    assert "again with more rounds (-r 9)" in text
    (change,) = compare(as_records(found), as_records(row(ns=[2000] * 5)))
    assert not change.slower(0.03)
    assert "too noisy" in markdown([change], 0.03)


def test_warm_up_ends_when_runs_get_no_faster() -> None:
    assert warm_up(FakeSide("a", [], [100, 50, 49, 1])) == 3
    assert warm_up(FakeSide("a", [], [100, 100])) == 2
    assert warm_up(FakeSide("a", [], [32, 16, 8, 4, 2, 1])) == 5
    log: list[str] = []
    measured(log, [5], [7], warm=True)
    assert log[2:6] == ["cpu", "cpu", "llama.cpp", "llama.cpp"]


def test_a_row_s_figures() -> None:
    found = row(Test(0, 100), [10**9, 2 * 10**9, 10**9], [3 * 10**9] * 3)
    assert (found.median_ts, found.min_ts, found.max_ts, found.q1_ts) == (100.0, 50.0, 100.0, 75.0)
    assert (found.avg_ns, found.noisy) == (1333333333, True)
    assert (found.gb_s, found.gflop_s, found.of_bandwidth) == (1.0, 10.0, 0.5)
    assert (found.ratio, found.samples_ratio, found.peer) == (3.0, (3.0, 1.5, 3.0), "llama.cpp")
    assert (found.bound, found.share_memory, found.share_compute) == ("memory", 0.9, 0.0)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_markdown_has_llama_bench_s_columns() -> None:
    text = "".join(FORMATS["md"]([row(ns=[10**9] * 3)], []))
    head, rule, line, *rest = text.splitlines()
    assert tuple(one[: len(LLAMA_BENCH[0])] for one in (head, rule, line)) == LLAMA_BENCH
    assert len({len(one) for one in (head, rule, line)}) == 1
    assert any(one.startswith("build: abc") for one in rest)
    assert "noisy" not in text
    shown = "".join(
        FORMATS["md"](made_rows(Test(5, 0), [1, 2, 9], [9, 9, 9], type_k="f32"), ["type_k", "ratio"])
    )
    assert "| type_k |" in shown
    assert " ± 2.00 |" in shown
    assert "ratio to llama.cpp |" in shown
    assert "noisy" in shown
    assert "".join(FORMATS["md"]([], [])) == ""


def test_machine_formats_parse_back() -> None:
    made = [row(peer=[5, 6, 7]), row(Test(512, 0, 64), threads=1)]
    wanted = [{name: getattr(one, name) for name in SCALARS} for one in made]
    for found in (
        json.loads("".join(FORMATS["json"](made, []))),
        [json.loads(line) for line in "".join(FORMATS["jsonl"](made, [])).splitlines()],
    ):
        assert [{name: one[name] for name in SCALARS} for one in found] == wanted
        assert found[0]["samples_ns"] == list(made[0].samples_ns)
    table = list(csv.DictReader("".join(FORMATS["csv"](made, [])).splitlines()))
    assert [one["cpu_info"] for one in table] == [made[0].cpu_info] * 2
    assert [float(one["median_ts"]) for one in table] == [one.median_ts for one in made]
    assert list(table[0]) == list(SCALARS)
    with sqlite3.connect(":memory:") as base:
        base.executescript("".join(FORMATS["sql"](made, [])))
        rows = base.execute(f"SELECT * FROM {TABLE}").fetchall()
    base.close()
    assert [dict(zip(SCALARS, one, strict=True)) for one in rows] == wanted
    assert json.loads("".join(FORMATS["json"]([], []))) == []


@looped("name", FORMATS)
def test_each_row_is_one_piece_that_comes_at_once(name: str) -> None:
    """Two formats are written side by side, and a long run is to be watched."""
    given: list[str] = []

    def rows() -> Iterator[ResultRow]:
        for number in range(3):
            given.append(f"row {number}")
            yield row()

    pieces = FORMATS[name](rows(), [])
    for number in range(3):
        assert "llama 1.1B Q4_0" in next(pieces)
        assert given[-1] == f"row {number}"


def test_what_was_measured_before_an_error_is_whole() -> None:
    def rows() -> Iterator[ResultRow]:
        yield row()
        yield row()
        raise BackendError("the other side ended")

    pieces: list[str] = []
    with pytest.raises(BackendError, match="the other side ended"):
        pieces.extend(FORMATS["json"](rows(), []))
    assert len(json.loads("".join(pieces))) == 2


def as_records(*made: object) -> list[dict[str, object]]:
    return [json.loads("".join(FORMATS["jsonl"]([one], []))) for one in made]  # type: ignore[list-item]


@looped(
    ("ns", "fails", "word"),
    [
        ([100, 101, 102], False, "the same"),
        ([110, 111, 112], True, "SLOWER"),
        ([98, 104, 150], False, "within the spread"),
        ([80, 81, 82], False, "faster"),
    ],
)
def test_slower_means_beyond_the_tolerance_and_the_spread(ns: list[int], fails: bool, word: str) -> None:
    a, b = as_records(row(ns=[97, 100, 103])), as_records(row(ns=ns))
    (change,) = compare(a, b)
    assert change.slower(0.03) is fails
    assert word in markdown([change], 0.03)
    assert not change.slower(0.5)


def test_rows_are_matched_by_test_and_setting() -> None:
    before = as_records(row(Test(8, 0)), row(Test(0, 8)), row(Test(0, 8), threads=1))
    after = as_records(row(Test(0, 8), threads=1), row(Test(0, 8, 64)), row(Test(0, 8)))
    assert [(one.test, one.threads) for one in compare(before, after)] == [("tg8", 2), ("tg8", 1)]
    with pytest.raises(UsageError, match="no row in common"):
        compare(before[:1], after)
    theirs = {**before[0], "backends": "CPU", "model_filename": "other/folder/model.gguf", "stddev_ts": 1.0}
    llama_bench = {
        name: value for name, value in theirs.items() if name not in ("samples_ts", "n_parallel", "test")
    }
    (change,) = compare(before[:1], [llama_bench])
    assert (change.test, change.b) == ("pp8", theirs["avg_ts"])


def test_the_cases_of_a_suite_are_told_apart() -> None:
    """A suite has one test at one setting twice: alone, and beside a busy process."""
    made = [replace(row(ns=[taken] * 3), suite_case=name) for name, taken in (("alone", 10), ("busy", 20))]
    slower = [made[0], replace(row(ns=[40] * 3), suite_case="busy")]
    assert [round(one.change, 3) for one in compare(as_records(*made), as_records(*slower))] == [0.0, -0.5]
    assert len(compare(as_records(*made), as_records(row()))) == 2  # of which the other file knows nothing


def test_rows_without_a_counterpart_are_named() -> None:
    before = as_records(row(Test(8, 0)), row(Test(0, 8)), replace(row(Test(0, 8, 64)), suite_case="deep"))
    after = as_records(row(Test(0, 8)), row(Test(0, 8), threads=1))
    only_a, only_b = left_over(before, after)
    assert only_a == [
        "llama 1.1B Q4_0, cpu, 2 threads, pp8",
        "llama 1.1B Q4_0, cpu, 2 threads, deep: tg8 @ d64",
    ]
    assert only_b == ["llama 1.1B Q4_0, cpu, 1 thread, tg8"]
    assert left_over(before, before) == ([], [])


def test_ratios_can_be_compared_where_the_machine_is_not_the_same() -> None:
    a, b = as_records(row(ns=[10] * 3, peer=[20] * 3)), as_records(row(ns=[30] * 3, peer=[60] * 3))
    assert compare(a, b, "t/s")[0].slower(0.03)
    assert not compare(a, b, "ratio")[0].slower(0.03)
    with pytest.raises(UsageError, match="--by: wanted"):
        compare(a, b, "bytes")
