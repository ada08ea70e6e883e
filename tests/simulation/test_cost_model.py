"""A cost model is fitted to steps, kept in a file, refused where it is none; the command measures it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.simulation import CostModel
from graphml.simulation.cost_model import FORMAT, contexts
from graphml.simulation.measuring import fitted
from tests import tiny_model

COST = CostModel(((1, 0.004), (8, 0.006), (512, 0.15)), 0.0002, 1e-6, 2e-7, 1024, 256, 8, name="m")


def test_what_made_the_seconds_is_found_again() -> None:
    numbers = np.random.default_rng(1)
    rows = numbers.choice([1, 2, 3, 4, 6, 8, 16, 32, 64, 100, 128], 800)
    others = np.stack(
        [np.minimum(rows, numbers.integers(0, 9, 800)), *numbers.integers(1, 9000, (2, 800))], 1
    )
    true = np.interp(rows, [1, 8, 128], [0.004, 0.006, 0.06]) + others @ [0.0003, 1e-6, 2e-7]
    seconds = true * numbers.normal(1, 0.02, 800)
    seconds[::40] *= 8  # steps that another process disturbed
    knots, values, error = fitted(rows, others, seconds)
    assert np.interp([1, 8, 128], knots, values[: len(knots)]) == pytest.approx(
        [0.004, 0.006, 0.06], rel=0.05
    )
    assert values[-3:] == pytest.approx([0.0003, 1e-6, 2e-7], rel=0.1)
    assert error < 0.03


def test_nothing_costs_less_than_nothing() -> None:
    rows = np.array([1, 1, 2, 2, 4, 4] * 4)
    others = np.stack([rows, rows * 10, rows * 0], 1)
    _, values, _ = fitted(rows, others, 0.01 - 0.001 * rows)
    assert min(values) >= 0


def test_more_rows_never_cost_less_whatever_noise_says() -> None:
    rows = np.array([1, 2, 4, 8] * 8)
    others = np.zeros((len(rows), 3))
    knots, values, _ = fitted(rows, others, np.where(rows == 4, 1e-3, np.where(rows == 8, 4e-4, 2e-3)))
    assert values[: len(knots)] == sorted(values[: len(knots)])
    outputs = np.stack([rows, rows * 0, rows * 0], 1)  # all of it is said to be the output rows'
    knots, values, _ = fitted(rows, outputs, 0.01 * rows)
    assert min(values[: len(knots)]) > 0


def test_steps_cost_what_their_rows_and_cells_do() -> None:
    assert COST.step_s(1, 0, 0) == 0.004
    assert COST.step_s(4, 4, 100, 1000) == pytest.approx(0.004 + 0.002 * 3 / 7 + 0.0008 + 1e-4 + 2e-4)
    assert COST.step_s(1024, 0, 0) == pytest.approx(0.3)
    assert contexts([(9, 1), (0, 3), (10, 2)]) == (10, 6 + 23)


def test_a_file_keeps_it(tmp_path: Path) -> None:
    COST.write(tmp_path / "cost.json")
    assert CostModel.read(tmp_path / "cost.json") == COST


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "another"}, f"wanted {FORMAT!r} as its format"),
        ({"speed": 1}, "'speed' is no part of one"),
        ({"n_ctx": None}, "missing"),
        ({"parallel": 0}, "parallel: wanted a number from 1 on; got 0"),
        ({"output_s": -1}, "output_s: wanted a number from 0 on; got -1"),
        ({"context_s": "1"}, "context_s: wanted a number from 0 on; got '1'"),
        ({"rows_s": []}, "rows_s: wanted pairs"),
        ({"rows_s": [[1, 0], [8, 0]]}, "rows_s: wanted seconds above 0"),
        ({"rows_s": [[2, 1], [1, 1]]}, "rows_s: wanted pairs in the order of their rows"),
        ({"rows_s": [[1, 1, 1]]}, "rows_s: wanted pairs of rows and seconds"),
        ({"n_blocks": 31}, "n_blocks: wanted blocks of 32 for 1024 tokens"),
        ({"target_s": 0}, "target_s: wanted"),
        ({"name": 3}, "name: wanted a text"),
    ],
)
def test_a_file_that_keeps_none_is_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "cost.json"
    COST.write(path)
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(
        json.dumps({name: value for name, value in values.items() if value is not None or name != "n_ctx"})
    )
    with pytest.raises(UsageError) as raised:
        CostModel.read(path)
    assert words in str(raised.value)
    assert str(path) in str(raised.value)


def run(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_the_command_measures_keeps_and_simulates(tmp_path: Path) -> None:
    model, cost = tiny_model.write(tmp_path / "tiny.gguf"), tmp_path / "cost.json"
    law = ("--seconds", 20, "--prompt-tokens", 20, "--answer-tokens", 5, "--prefix-share", 0.5)
    law += ("--prefix-tokens", 32, "--json")
    done = run(model, "--measure", "-o", cost, "-np", 2, "-c", 128, *law)
    assert "a step of one sequence" in done.stderr
    again = run(cost, *law)
    assert json.loads(done.stdout) == json.loads(again.stdout)
    assert json.loads(done.stdout)["answered"] > 5
    assert CostModel.read(cost).parallel == 2
    larger = json.loads(run(cost, *law, "-np", 4, "-c", 64, "--replicas", "1-3", "--fail-every", 5).stdout)
    assert larger["deaths"] > 0


def test_the_table_says_what_the_report_does(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    COST.write(path)
    text = run(path, "--replicas", 3, "--rate", 4, "--seconds", 30, "--fail-every", 20, "--seed", 2).stdout
    for what in (
        "requests",
        "deaths",
        "tokens",
        "prompts",
        "first token",
        "between tokens",
        "replicas",
        "cost",
    ):
        assert f"\n{what} " in f"\n{text}"
    trace = tmp_path / "a.csv"
    trace.write_text("arrival_s,prompt,answer\n0,10,3\n1,10,4\n")
    values = json.loads(run(path, "--arrivals", trace, "--json").stdout)
    assert (values["requests"], values["tokens"], values["model"]) == (2, 7, "m")


def test_the_command_needs_a_cost_model(tmp_path: Path) -> None:
    assert "COST.json: wanted what graphml simulate MODEL --measure" in run(code=2).stderr
    assert "COST.json: wanted" in run("smollm2", code=2).stderr
    assert (
        "there is no such file" in (text := run(tmp_path / "no.json", code=2).stderr)
        or "No such file" in text
    )
    (tmp_path / "cost.json").write_text("{")
    assert "no JSON" in run(tmp_path / "cost.json", code=2).stderr
