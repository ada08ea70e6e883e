"""Arrivals at an engine: what clients see, the rows made of it, and the suite as it is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import graphml
from benchmarks import plots, serve_run
from benchmarks.serve_run import ServeJob, ServeRow, run_loads
from benchmarks.serving import Load, serve
from benchmarks.suite import app
from benchmarks.suites import ServeCase, serve_cases
from graphml.bench.latencies import AnswerTimes, percentiles
from graphml.errors import UsageError
from tests import tiny_model
from tests.bench.results import ENVIRONMENT
from tests.looped import looped

SMALL = Load(clients=3, requests=2, n_prompt=8, n_gen=5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, "cpu", threads=2) as model:
        yield model


def test_each_client_asks_again_when_it_has_its_answer(model: graphml.Model) -> None:
    found = serve(model, SMALL)
    assert [len(one.token_s) for one in found.answers] == [5] * 6
    assert {(one.n_prompt, one.n_cached) for one in found.answers} == {(8, 0)}
    for first, second in zip(found.answers[::2], found.answers[1::2], strict=True):  # of one client
        assert first.arrived_s < first.token_s[0] <= first.token_s[-1] <= second.arrived_s
    begin = min(one.arrived_s for one in found.answers)
    assert found.seconds == pytest.approx(max(one.token_s[-1] for one in found.answers) - begin, abs=0.05)
    assert found.tokens_per_s == 30 / found.seconds
    assert found.n_rows == 6 * (8 + 4)
    assert 0 < found.computed_s < found.seconds
    assert (found.long, found.n_long_sent, found.n_preempted) == ((), 0, 0)


def test_a_shared_prefix_is_computed_once(model: graphml.Model) -> None:
    found = serve(model, replace(SMALL, n_shared=64))
    assert sorted(one.n_cached for one in found.answers) == [0, 64, 64, 64, 64, 64]
    assert {one.n_prompt for one in found.answers} == {72}
    assert found.n_rows == 64 + 6 * (8 + 4)


def test_long_prompts_arrive_beside_the_clients(model: graphml.Model) -> None:
    found = serve(model, replace(SMALL, requests=8, n_long=100, long_s=0.002))
    assert found.n_long_sent >= 2
    assert 1 <= len(found.long) <= found.n_long_sent
    assert {(one.n_prompt, len(one.token_s)) for one in found.long} == {(100, 1)}
    assert len(found.answers) == 24


def test_the_same_seed_is_the_same_load(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    submit = graphml.api.engine.Engine.submit

    def noted(self: object, ids: object, **options: object) -> object:
        asked.append(list(ids))  # type: ignore[call-overload]
        return submit(self, ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(graphml.api.engine.Engine, "submit", noted)
    for seed in (0, 0, 1):
        serve(model, replace(SMALL, requests=1, seed=seed))
    assert sorted(asked[:3]) == sorted(asked[3:6]) != sorted(asked[6:])
    assert len({tuple(ids) for ids in asked}) == 6


def test_loads_that_do_not_fit(model: graphml.Model) -> None:
    with pytest.raises(UsageError, match=r"tiny\.gguf: wanted a context of 1013 tokens for prompts of 1008"):
        serve(model, replace(SMALL, n_shared=1000))
    with pytest.raises(
        UsageError, match="-npl: wanted at most 510 clients, since a step has 512 rows; got 511"
    ):
        serve(model, replace(SMALL, clients=511, n_long=20))


def test_percentiles_are_of_all_rounds(path: Path) -> None:
    case = ServeCase("three", "", "", SMALL, repetitions=2)
    (row,) = run_loads([case], [2], lambda shape, type: str(path), ServeJob("cpu", ENVIRONMENT, warm=False))
    assert (row.suite_case, row.n_requests, row.n_prompts, row.n_threads) == ("three", 12, 96, 2)
    assert len(row.samples_ts) == len(row.samples_ttft_ms) == len(row.samples_itl_ms) == 2
    assert row.q1_ts <= row.median_ts <= row.q3_ts
    for found in (row.ttft_ms, row.itl_ms, *row.samples_itl_ms):
        assert list(found) == ["p50", "p95", "p99"]
        assert 0 < found["p50"] <= found["p95"] <= found["p99"]
    assert row.load["n_prompt"] == 8
    text = "".join(serve_run.markdown([row]))
    assert text.splitlines()[2].startswith("| three")
    assert json.loads("".join(serve_run.as_json([row, row])))[1]["itl_ms"] == row.itl_ms
    assert json.loads("".join(serve_run.as_json([]))) == []


def test_gaps_and_percentiles() -> None:
    answer = AnswerTimes(1.0, (1.5, 1.75, 2.75), 8, 0)
    assert (answer.ttft_s, answer.itl_s) == (0.5, [0.25, 1.0])
    values = [one / 1000 for one in range(101)]
    assert percentiles(values) == pytest.approx({"p50": 50.0, "p95": 95.0, "p99": 99.0})
    assert percentiles([]) == {}


def test_the_cases() -> None:
    found = {one.name: one.load for one in serve_cases()}
    assert list(found)[:3] == ["1 client", "1 client, shared prefix", "1 client, long prompts"]
    assert {one.clients: one.requests for one in found.values()} == {1: 8, 8: 4, 32: 2}
    assert {(one.n_prompt, one.n_gen) for one in found.values()} == {(256, 128)}
    assert found["8 clients, shared prefix"].n_shared == 1024
    assert (found["32 clients, long prompts"].n_long, found["32 clients, long prompts"].long_s) == (4096, 2.0)
    assert not found["8 clients"].n_shared + found["8 clients"].n_long


def suite(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_suite_made_small(path: Path) -> None:
    small = ["serve", "-m", path, "-p", 8, "-n", 4, "-npl", "1,2", "-t", 1, "-r", 1, "--no-warmup"]
    done = suite(*small, "--case", "2 client*", "-o", "json", "-oe", "md")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [one["suite_case"] for one in rows] == [
        "2 clients",
        "2 clients, shared prefix",
        "2 clients, long prompts",
    ]
    assert set(rows[0]) == set(ServeRow.__dataclass_fields__)
    assert rows[2]["n_long_sent"] >= 1
    assert done.stderr.count("\n| 2 clients") == 3


@looped(
    ("arguments", "words"),
    [
        (["serve", "-p", "8,16"], "-p: wanted one number of 1 or more for serve; got 8, 16"),
        (["serve", "-n", "1"], "-n: wanted one number of 2 or more for serve; got 1"),
        (["serve", "-d", "8"], "serve: wanted no -d"),
        (["serve", "--peer", "llama.cpp"], "serve: wanted one backend and no --peer"),
        (["serve", "-o", "csv"], "-o: wanted md or json of serve; got 'csv'"),
        (["serve", "--case", "5*"], "--case: wanted a pattern of 1 client, "),
        (["das", "-p", "64", "-n", "8"], "das: wanted no -p, -n"),
        (["all"], "suite: wanted one of targets, realizar"),
        (["das", "-r", "1", "-t", "1", "--no-warmup"], "wanted a model with a context of 512"),
    ],
)
def test_what_a_suite_does_not_have(path: Path, arguments: list[str], words: str) -> None:
    assert words in str(suite(*arguments, "-m", path).exception)


def test_a_suite_is_stored_and_drawn(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    cases = ["--case", "1 seq*", "--case", "2 seq*", "--backend", "cpu,reference"]
    done = suite("batch", "-m", path, *cases, "-r", 1, "-t", 1, "--no-warmup", "-o", "json")
    assert [(row["suite_case"], row["test"], row["backends"]) for row in json.loads(done.stdout)] == [
        (f"{count} sequences", f"tg32{several} sampled @ d64", side)
        for count, several in ((1, ""), (2, " x2"))
        for side in ("cpu", "reference")
    ]
    stored = tmp_path / "batch.json"
    stored.write_text(done.stdout, encoding="utf-8")
    plots.main([str(stored), str(tmp_path / "drawn"), "--roofline", str(path), "-t", "1"])
    drawn = {one.name: one.read_bytes() for one in (tmp_path / "drawn").iterdir()}
    assert set(drawn) == {
        "sequences.png", "speed-cpu.png", "speed-reference.png", "roofline-cpu-prompt.png",
        "roofline-cpu-generation.png",
    }  # fmt: skip
    for content in drawn.values():
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
    assert capsys.readouterr().out.count("drew ") == 5
