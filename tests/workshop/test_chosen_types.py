"""Types chosen by costs: the choice, the files, the command; with sensitivities that are made up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError
from graphml.weights import open_model
from graphml.workshop.importance import Importance
from graphml.workshop.importance_file import read_importance
from graphml.workshop.measured_types import (
    MeasuredTypes,
    chosen_types,
    draw_plan,
    matrices,
    measure_types,
    read_measured,
    read_plan,
    write_measured,
    write_plan,
)
from graphml.workshop.sensitivity import Sensitivity
from graphml.workshop.type_costs import TypeCost, choose, parsed, type_costs, written
from tests import tiny_model
from tests.cli.test_commands import graphml_command

TYPES = ("q4_0", "q5_1", "q8_0")


def _measured(path: Path) -> MeasuredTypes:
    with open_model(path) as file:
        tensors = matrices(file)
        rng = np.random.default_rng(3)
        sums = {t.name: (rng.random(t.shape) ** 3).astype(np.float32) for t in tensors}
        seen = Sensitivity(8, sums, 2)
        costs = dict(type_costs(tensors, seen, TYPES, threads=2))
        columns = {t.name: seen.columns(t.name) for t in tensors}
        ones = {name: np.ones(len(means), np.int64) for name, means in columns.items()}
        return MeasuredTypes(costs, Importance(columns, ones, ("text",), 2, 8), file.fingerprint, "of a text")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf")


def test_costs_are_squared_errors_times_sensitivity(path: Path) -> None:
    costs = _measured(path).costs
    with open_model(path) as file:
        tensor = file.tensors["blk.0.ffn_down.weight"]
        index = [t.name for t in matrices(file)].index(tensor.name)
        rng = np.random.default_rng(3)
        sums = [(rng.random(t.shape) ** 3).astype(np.float32) for t in matrices(file)][index]
        values = tensor.numpy()
        importance = sums.mean(axis=0, dtype=np.float64) / (2 * 8 * 2)
        blocks = graphml.quantize(values, "Q5_1", importance)
        errors = graphml.dequantize(blocks, "Q5_1", values.shape) - values
        assert costs[tensor.name]["q5_1"].kl == pytest.approx(float((sums * errors**2).sum()) / 32, rel=1e-5)
        assert costs[tensor.name]["q5_1"].n_bytes == blocks.size
    for of_types in costs.values():
        assert of_types["q8_0"].kl < of_types["q5_1"].kl < of_types["q4_0"].kl


def test_a_choice_is_near_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    names, types = "abcdef", ("s", "m", "l", "x")
    costs = {
        name: {
            dtype: TypeCost(size * n, weight * 4.0**-i)
            for i, (dtype, size) in enumerate(zip(types, (10, 14, 18, 30), strict=True))
        }
        for name, n, weight in zip(names, (1, 2, 1, 3, 1, 2), rng.random(6), strict=True)
    }
    for budget in (100, 130, 170, 260):
        chosen = choose(costs, budget)
        assert sum(costs[name][dtype].n_bytes for name, dtype in chosen.items()) <= budget
        best = min(
            sum(costs[name][dtype].kl for name, dtype in zip(names, each, strict=True))
            for each in itertools.product(types, repeat=len(names))
            if sum(costs[name][dtype].n_bytes for name, dtype in zip(names, each, strict=True)) <= budget
        )
        assert sum(costs[name][dtype].kl for name, dtype in chosen.items()) <= 1.25 * best
    with pytest.raises(UsageError, match="the smallest types take 100 bytes for tensors; wanted at most 99"):
        choose(costs, 99)


def test_types_that_are_no_better_are_not_chosen() -> None:
    of_types = {
        "small": TypeCost(10, 1.0), "larger and worse": TypeCost(12, 1.5), "above it": TypeCost(14, 0.9),
        "same size, worse": TypeCost(20, 0.5), "large": TypeCost(20, 0.2),
    }  # fmt: skip
    chosen = {budget: choose({"a": of_types}, budget)["a"] for budget in range(10, 30)}
    assert set(chosen.values()) == {"small", "large"}
    assert [budget for budget, dtype in chosen.items() if dtype == "large"] == list(range(20, 30))


def test_what_was_measured_is_kept_in_a_file_of_importance(path: Path, tmp_path: Path) -> None:
    measured = _measured(path)
    write_measured(tmp_path / "costs.gguf", measured)
    with open_model(path) as file, open_model(tiny_model.write(tmp_path / "other.gguf", seed=9)) as other:
        assert read_measured(tmp_path / "costs.gguf", file).costs == measured.costs
        with pytest.raises(UsageError, match=r"costs.gguf: was measured with another model"):
            read_measured(tmp_path / "costs.gguf", other)
    assert set(read_importance(tmp_path / "costs.gguf").sums) == set(measured.costs)
    assert parsed(written(measured.costs)) == measured.costs
    for text in ("[]", "{", '{"a": 1}', '{"a": {"q4_0": [1]}}'):
        with pytest.raises(UsageError, match="costs of types"):
            parsed(text)


def test_a_matrix_that_the_text_does_not_reach_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with graphml.load(path, "reference") as model:
        sums = {t.name: np.ones(t.shape, np.float32) for t in matrices(model.executor.file)}
        sums["blk.1.ffn_up.weight"][:] = 0
        seen = Sensitivity(8, sums, 2)
        monkeypatch.setattr("graphml.workshop.measured_types.sensitivity", lambda *_: iter([seen]))
        with pytest.raises(UsageError, match=r"blk.1.ffn_up.weight: the text's answers do not depend on it"):
            measure_types(model, [5, 6], "text", TYPES)


def test_a_larger_file_costs_less(path: Path) -> None:
    measured = _measured(path)
    with open_model(path) as file:
        predicted = []
        for n_bytes in range(24_000, 44_000, 2_000):
            types, kl = chosen_types(measured, file, n_bytes, TYPES)
            of_matrices = sum(measured.costs[name][dtype].n_bytes for name, dtype in types.items())
            others = sum(t.n_bytes for name, t in file.tensors.items() if name not in types)
            assert of_matrices + others <= n_bytes
            predicted.append(kl)
        assert predicted == sorted(predicted, reverse=True)
        assert predicted[-1] < 0.2 * predicted[0]
        with pytest.raises(UsageError, match=r"--types: .* none of them has blocks that divide its rows"):
            chosen_types(measured, file, 40_000, ("q4_k",))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "plan.json"),
        ("[]", "wanted {"),
        ('{"types": {"a": 1}}', "wanted {"),
        (
            '{"types": {"a": "q4_0", "b": "q4_0", "a": "q8_0"}}',
            "plan.json: a: wanted it once; it is there twice",
        ),
        ('{"types": {"nothing": "q4_0"}}', "nothing: wanted a matrix of the model that can get another type"),
        ('{"types": {"blk.0.ffn_down.weight": "q9"}}', "got 'q9'"),
        ('{"types": {"blk.0.ffn_down.weight": "q4_k"}}', "blocks divide rows of 64; got 'q4_k'"),
        ('{"types": {"blk.0.ffn_down.weight": "q8_1"}}', "got 'q8_1'"),
        ('{"types": {"blk.0.ffn_down.weight": "q4_0"}}', "wanted a type for each matrix"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(path: Path, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with open_model(path) as file, pytest.raises(UsageError) as raised:
        read_plan(tmp_path / "plan.json", file)
    assert says in str(raised.value)


def test_the_command_chooses_keeps_and_takes_a_plan(path: Path, tmp_path: Path) -> None:
    write_measured(tmp_path / "costs.gguf", _measured(path))
    plan, plot = tmp_path / "plan.json", tmp_path / "plan.png"
    common = ["quantize", path]
    auto = ["--auto", "--costs", tmp_path / "costs.gguf"]
    done = graphml_command(
        *common, tmp_path / "a.gguf", *auto, "--target-bits", 7, "--save-plan", plan, "--plot", plot
    )
    assert "KL divergence a token predicted 0." in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    with open_model(tmp_path / "a.gguf") as file:
        bits = 8 * file.n_weight_bytes / sum(t.n_elements for t in file.tensors.values())
        assert 6.5 < bits <= 7
        assert file.metadata["quantize.imatrix.entries_count"] == len(matrices(file))
        types = {name: file.tensors[name].dtype for name in json.loads(plan.read_text())["types"]}
        assert types == json.loads(plan.read_text())["types"]
    edited = dict.fromkeys(types, "Q8_0")
    plan.write_text(json.dumps({"types": edited}))
    graphml_command(*common, tmp_path / "b.gguf", "--plan", plan)
    with open_model(tmp_path / "b.gguf") as file:
        assert {file.tensors[name].dtype for name in edited} == {"q8_0"}  # in capitals, too
        assert file.metadata["general.file_type"] == 7
    size = (tmp_path / "b.gguf").stat().st_size
    graphml_command(*common, tmp_path / "c.gguf", *auto, "--target-size", f"{size // 1024}K")
    assert (tmp_path / "c.gguf").stat().st_size <= size + 1024
    dry = [*common, *auto, "--target-bits", 5, "--dry-run", "--json"]
    said = graphml_command(*dry, "--texts", 7).stderr
    assert "was measured with Q4_0, Q5_1, Q8_0: types are chosen from these alone" in said
    assert "--texts: " in said
    assert "pieces, which stay" in said
    assert "measured" not in graphml_command(*dry, "--types", "Q4_0,Q8_0").stderr
    rows = json.loads(graphml_command(*dry).stdout)
    assert {row["type"] for row in rows["tensors"]} <= {"f32", *TYPES}
    for arguments, says in (
        (["x.gguf", "--auto"], "wanted --target-bits or --target-size"),
        (["x.gguf", *auto, "--target-bits", 5, "--target-size", "1G"], "--target-size alone; got both"),
        (["x.gguf", "Q4_0", "--texts", 5], "--texts: wanted --auto with it"),
        (
            ["x.gguf", *auto, "--target-bits", 7, "--types", "Q8_0,Q4_1"],
            "was measured without Q4_1: wanted some",
        ),
        (["x.gguf", "--auto", "--target-bits", 5], "wanted --file, a calibration text"),
        (["x.gguf", "--auto", "--target-bits", 5, "--plan", plan], "wanted it without --auto"),
        (["x.gguf", "Q4_0", "--target-bits", 5], "--target-bits: wanted --auto with it"),
        (["x.gguf", "Q4_0", "--plot", "x.png"], "--plot: wanted --auto or --plan with it"),
        (["x.gguf", *auto, "--target-bits", 5, "--types", "Q9"], "--types: wanted some of"),
        (["x.gguf", *auto, "--target-bits", 5, "--pure"], "say each type"),
        (["x.gguf", *auto, "--target-bits", 2], "the smallest types take"),
        (["x.gguf", *auto, "--target-size", "1K"], "--target-size: the file's keys take more than that: "),
        (["x.gguf", *auto, "--target-bits", 5, "-f", __file__], "was measured on another text than"),
        (["x.gguf", "--plan", plan, "--save-plan", plan], f"--save-plan: {plan} is there already; --force"),
        (["x.gguf", "--plan", plan, "--plot", plot], f"--plot: {plot} is there already; --force"),
        ([tmp_path / "costs.gguf", *auto, "--target-bits", 5, "--force"], "is read by this command"),
    ):
        assert says in graphml_command(*common, *arguments, code=2).stderr


def test_the_picture_has_matrices_outside_of_layers(path: Path, tmp_path: Path) -> None:
    with open_model(path) as file:
        draw_plan(tmp_path / "plan.svg", file, {t.name: "q8_0" for t in matrices(file)})
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda costs: costs.pop("blk.0.ffn_up.weight"), "blk.0.ffn_up.weight: wanted costs of each matrix"),
        (
            lambda costs: costs.update({"blk.9.ffn_up.weight": {}}),
            "blk.9.ffn_up.weight: wanted costs of each",
        ),
        (
            lambda costs: costs["blk.0.ffn_up.weight"].update(q9=[1, 1]),
            "q9: wanted a type that the matrix can",
        ),
        (
            lambda costs: costs["blk.0.ffn_up.weight"].update(q4_k=[1, 1]),
            "q4_k: wanted a type that the matrix",
        ),
        (
            lambda costs: costs["blk.0.ffn_up.weight"].update(q4_0=[7, 1]),
            "wanted 1152 bytes and a KL divergence",
        ),
        (lambda costs: costs["blk.0.ffn_up.weight"]["q4_0"].__setitem__(1, float("nan")), "got 1152, nan"),
        (
            lambda costs: costs["blk.0.ffn_up.weight"].update(q4_0=1),
            "costs.gguf: key graphml.type_costs: wanted",
        ),
    ],
)
def test_costs_that_do_not_fit_the_model_are_refused(
    path: Path, tmp_path: Path, edit: Callable[[Any], object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = json.loads(written(_measured(path).costs))
    edit(costs)
    monkeypatch.setattr("graphml.workshop.measured_types.written", lambda _: json.dumps(costs))
    write_measured(tmp_path / "costs.gguf", _measured(path))
    with open_model(path) as file, pytest.raises(UsageError) as raised:
        read_measured(tmp_path / "costs.gguf", file)
    assert says in str(raised.value)


def test_an_output_that_is_there_is_refused_before_anything_is_measured(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphml.cli.options.chosen_types.load_model", lambda *_: pytest.fail("was opened"))
    (tmp_path / "out.gguf").write_bytes(b"x")
    for output, says in ((tmp_path / "out.gguf", "--force overwrites it"), (path, "is the model itself")):
        options = ["--auto", "--target-bits", 5, "-f", __file__, *(["--force"] if output == path else [])]
        assert says in graphml_command("quantize", path, output, *options, code=2).stderr


def test_a_plan_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.json"
    write_plan(plan, {"a": "q4_0"})
    before = plan.read_text()

    def full(self: Path, text: str, **_: object) -> int:
        self.write_bytes(text[:9].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match=r"plan.json: cannot be written: No space left"):
        write_plan(plan, {"a": "q8_0"})
    assert plan.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
