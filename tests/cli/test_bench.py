"""`graphml bench` as it is run: a small model, real processes, results that are read again."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graphml.cli.main import app
from tests import tiny_model
from tests.gpu.driven import opened

SMALL = ["-p", "4", "-n", "2", "-r", "2", "-t", "1", "--no-warmup"]


def bench(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("bench") / "tiny.gguf")


@pytest.fixture(scope="module")
def results(path: Path) -> list[dict[str, object]]:
    """Two backends side by side, two sequences too."""
    done = bench("-m", path, *SMALL, "-npl", "1,2", "-d", "3", "--backend", "cpu,reference", "-o", "json")
    assert done.stderr == ""
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_every_test_is_measured_on_every_side(results: list[dict[str, object]]) -> None:
    assert [(row["test"], row["backends"]) for row in results] == [
        (test, backend)
        for test in ("pp4 @ d3", "tg2 @ d3", "pp4 x2 @ d3", "tg2 x2 @ d3")
        for backend in ("cpu", "reference")
    ]
    for row in results:
        assert len(row["samples_ns"]) == 2  # type: ignore[arg-type]
        assert row["model_filename"] == "tiny.gguf"
        assert len(str(row["model_sha256"])) == 64
        assert row["bandwidth_gb_s"] > 0  # type: ignore[operator]
        assert row["peer"] == ("reference" if row["backends"] == "cpu" else "")
        assert row["judge"] == "reference"
        assert row["correct"] == ("ok" if row["backends"] == "cpu" else "reference")
        assert 0 <= row["logits_nmse"] < 0.1  # type: ignore[operator]
        steps = [row[f"step_p{which}_ms"] for which in (50, 90, 99)]
        assert steps == sorted(steps)  # type: ignore[type-var]
        assert (steps[0] > 0) == (row["n_gen"] > 0)  # type: ignore[operator]
        for name in ("load_ms", "compile_ms", "resident_bytes", "peak_bytes"):
            assert row[name] > 0, name  # type: ignore[operator]
        assert row["device"] == row["cpu_info"]
        assert row["bound"] in ("memory", "compute", "overhead")
    assert {row["level"] for row in results} >= {""}


QUICK = ["-p", "4", "-n", "0", "-r", "1", "-t", "1", "--no-warmup"]


def test_rules_of_placement_are_settings_of_rows(path: Path) -> None:
    """On the reference alone, then with a layer on the CPU."""
    quick = ["-m", path, *QUICK, "--backend", "reference"]
    rules = ["--place", "reference:layers.0-1", "--place", "cpu:layers.0"]
    rows = json.loads(bench(*quick, *rules, "-o", "json").stdout)
    assert [(row["backends"], row["place"]) for row in rows] == [
        ("reference", "reference:layers.0-1"),
        ("reference", "cpu:layers.0"),
    ]
    assert {row["gpu_layers"] for row in rows} == {-1}


def test_layers_of_a_gpu_are_settings_of_rows(path: Path) -> None:
    opened("opencl")
    table = bench("-m", path, *QUICK, "--backend", "opencl", "-ngl", "0,1").stdout
    head, _, none, one = (line.split("|") for line in table.splitlines()[:4])
    column = [cell.strip() for cell in head].index("gpu_layers")
    assert [none[column].strip(), one[column].strip()] == ["0", "1"]


def test_bytes_and_operations_of_a_step(results: list[dict[str, object]], path: Path) -> None:
    """Generation reads each weight once a step, whatever the number of sequences; prompts too."""
    one, two = (row for row in results if row["n_gen"] and row["backends"] == "cpu")
    matrices = path.stat().st_size * 0.6
    assert matrices < one["n_bytes"] / 2 < path.stat().st_size * 1.1  # type: ignore[operator]
    assert one["n_bytes"] < two["n_bytes"] < 1.3 * one["n_bytes"]  # type: ignore[operator]
    assert 1.95 < two["flops"] / one["flops"] < 2.02  # type: ignore[operator]


def test_compare_ends_with_1_where_something_is_slower(
    results: list[dict[str, object]], tmp_path: Path
) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_text(json.dumps(results))
    slow = [{**row, "samples_ts": [x / 2 for x in row["samples_ts"]]} for row in results]  # type: ignore[attr-defined]
    for row in slow:
        row["samples_ts"] = [min(row["samples_ts"])] * 2
    after.write_text("\n".join(map(json.dumps, slow)))
    assert bench("compare", before, before).stdout.count("the same") == 8
    assert "SLOWER" in bench("compare", before, after, code=1).stdout
    assert (
        json.loads(bench("compare", before, after, "--json", "--fail-over", "99%").stdout)["tolerance"]
        == 0.99
    )
    for text, words in [
        ("{", "wanted the JSON"),
        ("[1]", "row 0: wanted an object"),
        ('[{"n_prompt": "x"}]', "n_prompt: wanted"),
        (json.dumps([{**results[0], "avg_ts": math.nan}]), "avg_ts: wanted"),
        (json.dumps([{**results[0], "n_threads": 10**400}]), "n_threads: wanted"),
        (json.dumps([{**results[0], "samples_ts": [1, None]}]), "samples_ts: wanted"),
        (json.dumps([{**results[0], "ratio": "high"}]), "ratio: wanted"),
        ("[" * 100_000, "wanted the JSON"),
    ]:
        after.write_text(text)
        assert words in bench("compare", before, after, code=2).stderr
    assert "cannot be read" in bench("compare", before, tmp_path / "none", code=2).stderr
    after.write_text(json.dumps(results[1:]), encoding="utf-8-sig")
    words = f"only in {before}:\n- {results[0]['model_type']}, cpu, 1 thread, pp4 @ d3\n"
    assert words in bench("compare", before, after).stdout
    assert json.loads(bench("compare", after, before, "--json").stdout)["only_b"]
    assert "--fail-over: wanted" in bench("compare", before, before, "--fail-over", "much", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "x"], "-p: wanted whole numbers"),
        (["-p", "0", "-n", "0"], "wanted tokens to measure"),
        (["-o", "xml"], "-o: wanted one of md, csv"),
        (["--type", "Q8_0"], "--type: wanted --shape too"),
        (["-hf", "some/tiny", "--offline", "--type", "Q8_0"], "--type: wanted --shape too"),
        (["--shape", "huge"], "--shape: wanted one of"),
        (["--peer", "vllm"], "--peer: wanted one of llama.cpp, openvino; got 'vllm'"),
        (["--backend", ","], "--backend: wanted at least one"),
        (["-p", "4000", "-n", "0"], "wanted a model with a context of 4000"),
        (
            ["-ctk", "q9"],
            "-ctk: wanted one of f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, q8_0-plain, q5_1-",
        ),
        (["--quant", "q8,q9"], "--quant: wanted one of fp32, q8, q4; got 'q9'"),
        (["-t", "0"], "-t: wanted 1 or more"),
        (["--backend", "abacus"], "abacus"),
        (["--peer", "llama.cpp", "--peer-python", "/no/python"], "/no/python cannot be started"),
        (["--peer", "llama.cpp", "--peer-python", "cat"], "llama.cpp: its process said what is no answer"),
        (["--peer-python", "python"], "--peer-python: wanted --peer too"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_line(arguments: list[str], words: str, path: Path) -> None:
    model = [] if "--type" in arguments or "--shape" in arguments else ["-m", path]
    done = bench(*model, *arguments, code=1 if arguments[-1] == "cat" else 2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_peer_that_is_not_there_or_dies_is_told(path: Path, tmp_path: Path) -> None:
    """A Python without llama-cpp-python, and one that ends without a word of the protocol."""
    arguments = ["-m", path, *SMALL, "--peer", "llama.cpp", "--peer-python"]
    without = tmp_path / "python"
    without.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    without.chmod(0o755)
    assert "llama-cpp-python is not installed" in bench(*arguments, without, code=1).stderr
    without.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    assert "llama.cpp: its process ended with 3: out of luck" in bench(*arguments, without, code=1).stderr
