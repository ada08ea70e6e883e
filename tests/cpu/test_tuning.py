"""Tuning: what is searched, kept, read and refused; products with other parameters are the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_cpu import BACKEND, tuner, tuning
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.lowering.linear import product_kernel
from graphml_cpu.lowering.step import KernelCall
from graphml_cpu.program import CpuProgram
from graphml_quant import by_name, quantize
from typer.testing import CliRunner

from graphml.backend import TunableDevice, no_progress, tuning_file
from graphml.cli.main import app
from graphml.compiler.compile import prepare
from graphml.errors import BackendError
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.passes.plan import plan_memory
from tests import tiny_model

N, K, ROWS = 70, 256, FEW_ROWS + 3
TRIED = {"q4_0": {"tokens": (3,), "parts": (1,)}, "f32": {"tokens": (6,), "columns": (64,), "parts": (2,)}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file lies in a folder of the test's own; kernels stay where they are."""
    monkeypatch.setattr(tuning_file, "path", lambda: tmp_path / "tuning.json")
    monkeypatch.setattr(tuning, "candidates", lambda kernel: TRIED.get(kernel.name.partition("-")[2], {}))
    return tmp_path / "tuning.json"


def product(kind: str) -> tuple[Graph, dict[str, Array]]:
    g, random = Builder(), np.random.default_rng(0)
    plain = random.standard_normal((N, K)).astype(np.float32)
    stored = plain if kind == "f32" else np.ascontiguousarray(quantize(by_name(kind), plain)).view(np.uint8)
    weight = g.weight("w", dtype(kind), (N, K))
    graph = g.finish(result=g.mul_mat(weight, g.input("x", F32, (Symbol("T", ROWS), K))))
    return graph, {"w": stored if kind == "f32" else stored.reshape(N, -1)}


def tuned_program(kind: str, device: Any) -> tuple[CpuProgram, Graph, dict[str, Array]]:
    graph, weights = product(kind)
    final = prepare(graph, BACKEND, device).graph
    program = device.lower(final, plan_memory(final, device), weights, no_progress)
    assert isinstance(program, CpuProgram)
    return program, final, weights


@pytest.mark.parametrize("kind", TRIED)
def test_what_is_found_is_kept_and_gives_the_same_product(
    kind: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tuner, "_in_turns", lambda bench, tapes, rounds: [1 / (1 + i) for i in range(len(tapes))]
    )
    device = BACKEND.open(2)
    assert isinstance(device, TunableDevice)
    _, final, weights = tuned_program(kind, device)
    (found,) = device.tune([final, final], weights, no_progress)
    assert found.kernel == f"mul_mat-{kind}"
    assert found.shape == f"{N} x {K}, {ROWS} rows, 2 threads"
    wanted = {name: values[0] for name, values in TRIED[kind].items()}
    assert found.parameters == wanted
    (entry,) = json.loads(own_cache.read_text())["entries"]
    assert entry["parameters"] == wanted

    x = np.random.default_rng(1).standard_normal((ROWS, K)).astype(np.float32)
    results, parts = [], []
    for use in (False, True):
        device.use_tuning(use)
        program, final, weights = tuned_program(kind, device)
        program.inputs["x"][:] = x
        results.append(program.run({"T": ROWS}, device.state(final, {"T": ROWS}))["result"].copy())
        parts.append(program.tapes[0].steps[-1].parts)
    assert parts == [4, wanted["parts"]]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-4)
    exact = interpret(product("f32")[0], {"x": x, "w": product("f32")[1]["w"]})["result"]
    assert ((results[1] - exact) ** 2).sum() < 0.02 * (exact**2).sum()
    device.close()


@pytest.mark.parametrize(("crossing", "wanted"), [(8, {"few_rows": 8}), (FEW_ROWS, {})])
def test_the_rows_from_which_panels_pay_off_are_measured(
    crossing: int, wanted: dict[str, int], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows is made faster up to `crossing` rows; the usual number is not kept."""

    def in_turns(bench: Any, tapes: Any, rounds: int) -> list[float]:
        return [1.0, 2.0] if bench._rows[0] <= crossing else [2.0, 1.0]

    monkeypatch.setattr(tuning, "candidates", lambda kernel: {"few_rows": tuning.FEW})
    monkeypatch.setattr(tuner, "_in_turns", in_turns)
    device = BACKEND.open(1)
    _, final, weights = tuned_program("q4_0", device)
    (found,) = device.tune([final], weights, no_progress)  # type: ignore[attr-defined]
    assert found.parameters == wanted
    (entry,) = json.loads(own_cache.read_text())["entries"]
    assert entry["parameters"] == wanted
    device.close()


def test_the_number_of_few_rows_is_an_argument_of_the_call() -> None:
    arguments = {"n": N, "k": K, "few_rows": FEW_ROWS}
    step = KernelCall(product_kernel("q4_0"), arguments)
    assert tuning.with_parameters(step, {"few_rows": 8}).arguments["few_rows"] == 8
    assert tuning.with_parameters(step, {}).arguments["few_rows"] == FEW_ROWS


def test_without_being_asked_for_nothing_is_read(own_cache: Path) -> None:
    own_cache.write_text("damaged")
    device = BACKEND.open(1)
    tuned_program("q4_0", device)
    with pytest.raises(BackendError, match=r"tuning.json: is no file of `graphml tune`"):
        device.use_tuning(True)  # type: ignore[attr-defined]
    device.close()


def test_the_environment_asks_for_it(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphml.runtime.programs.load_options import LoadOptions
    from graphml.runtime.programs.open_executor import open_executor

    path = tiny_model.write(tmp_path / "tiny.gguf")
    own_cache.write_text("damaged")
    open_executor(path).close()
    monkeypatch.setenv("GRAPHML_TUNED", "1")
    with pytest.raises(BackendError, match=r"tuning\.json"):
        open_executor(path)
    open_executor(path, LoadOptions(tuned=False)).close()
    with pytest.raises(BackendError, match="'reference' has nothing to tune"):
        open_executor(path, LoadOptions("reference", tuned=True))


@pytest.mark.parametrize("wrong", ["product", "usual"])
def test_wrong_products_are_not_timed(wrong: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tuner._CpuBench.product
    calls: list[int] = []

    def product_of(bench: tuner._CpuBench, tape: Any) -> Array:
        calls.append(1)
        return right(bench, tape) + (1 if wrong == "usual" or len(calls) > 2 else 0)

    monkeypatch.setattr(tuner._CpuBench, "product", product_of)
    device = BACKEND.open(1)
    _, final, weights = tuned_program("q4_0", device)
    words = r"its product is wrong, NMSE" if wrong == "usual" else r"another product with \{'tokens': 3\}"
    with pytest.raises(BackendError, match=rf"mul_mat-q4_0.*{words}"):
        device.tune([final], weights, no_progress)  # type: ignore[attr-defined]
    assert not own_cache.exists()
    device.close()


KEY = ("mul_mat-q4_0", N, K, 2)
RESULT = {"parameters": {"tokens": 3}, "usual_s": 2.0, "tuned_s": 1.0}
STEP = KernelCall(product_kernel("q4_0"), {"n": N, "k": K})


def test_entries_of_other_machines_are_kept_and_not_used(own_cache: Path) -> None:
    tuning.save({KEY: RESULT})
    (mine,) = json.loads(own_cache.read_text())["entries"]
    others = [{**mine, "cpu": "z80"}, {**mine, "level": "mmx"}, {**mine, "version": "old"}]
    own_cache.write_text(json.dumps({"entries": others}))
    assert tuning.load().entries == {}
    tuning.save({KEY: RESULT})
    assert json.loads(own_cache.read_text())["entries"] == [*others[:2], mine]
    tuning.save({KEY: {**RESULT, "parameters": {}}})
    assert tuning.load().entries == {KEY: {}}
    assert tuning.load().applied(STEP, 2).kernel == STEP.kernel


def test_parameters_that_no_kernel_has_are_refused(own_cache: Path) -> None:
    for parameters in ({"tokens": 500}, {"tokens": "3"}, {"lanes": 1}, {"tokens": [3]}, {"tokens": 3.0}):
        tuning.save({KEY: {**RESULT, "parameters": parameters}})
        with pytest.raises(BackendError, match=r"tuning.json: mul_mat-q4_0 has no (tokens|lanes) of"):
            tuning.load().applied(STEP, 2)
    tuning.save({KEY: RESULT})
    tiles = dict(tuning.load().applied(STEP, 2).kernel.calls)["tiles"]
    assert tiles is not None
    assert tiles.arguments == ("q4_0", 3, 0)
    assert tuning.load().applied(STEP, 1) == STEP  # found with two threads


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"entries": 3}', '{"entries": [3]}', "[" * 100_000, "\x00"]
)
def test_damaged_files_are_told_and_replaced(content: str, own_cache: Path) -> None:
    own_cache.write_text(content)
    with pytest.raises(BackendError, match=r"tuning.json: is no file of `graphml tune`.*remove it"):
        tuning.load()
    tuning.save({KEY: RESULT})
    assert list(tuning.load().entries) == [KEY]


@pytest.mark.parametrize(
    "change",
    [{"n": "many"}, {"parameters": None}, {"threads": None}, {"kernel": None, "k": []}, {"n": math.inf}],
)
def test_damaged_entries_are_told(change: Mapping[str, object], own_cache: Path) -> None:
    tuning.save({KEY: RESULT})
    (entry,) = json.loads(own_cache.read_text())["entries"]
    own_cache.write_text(json.dumps({"entries": [{**entry, **change}]}))
    with pytest.raises(BackendError, match="remove it"):
        tuning.load()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning, "candidates", lambda kernel: {"parts": (1,)} if "mul_mat" in kernel.name else {}
    )
    path = tiny_model.write(tmp_path / "tiny.gguf")
    done = CliRunner().invoke(app, ["tune", str(path), "--threads", "2", "--batch", "16", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["tuned"]
    assert {row["shape"].split(", ")[1] for row in rows} == {"16 rows", "1 rows"}
    assert {row["kernel"].partition("-")[0] for row in rows} <= {"mul_mat", "mul_mat_vec"}
    assert all(row["tuned_s"] > 0 for row in rows)
    refused = CliRunner().invoke(app, ["tune", str(path), "--backend", "reference"])
    assert refused.exit_code == 2
    assert "nothing to tune" in refused.stderr
    monkeypatch.setattr(tuning_file, "path", lambda: path / "tuning.json")  # below a file
    monkeypatch.setattr("graphml_cpu.device.tune", lambda *_: pytest.fail("searched what it cannot keep"))
    refused = CliRunner().invoke(app, ["tune", str(path)])
    assert refused.exit_code == 1
    assert "tuning.json: cannot be written" in refused.stderr
