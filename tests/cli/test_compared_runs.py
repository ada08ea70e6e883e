"""`graphml compare` and `graphml bisect` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.cli.main import app
from tests import golden
from tests.inspect import faults
from tests.stories import STORIES


def command(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


# The gate alone, not with the two products before it.
ALONE = "-mul_mat_swiglu"


def wrong_swiglu() -> AbstractContextManager[None]:
    return faults.wrong_lowering("swiglu", faults.with_arguments(b_stride=0))


def test_compare_lists_every_value() -> None:
    done = command("compare", STORIES, "--tokens", 5)
    lines = done.stdout.splitlines()
    assert lines[0] == f"# {STORIES}: cpu against reference, 5 tokens"
    assert [line for line in lines if line.startswith("## ")] == ["## prefill", "## decode"]
    table = [line for line in lines if line.startswith("| layers.0.attention ")]
    assert len(table) == 2
    assert "| 4x8x8 " in table[0]
    assert lines[-1].endswith("none with NaN or infinity in A")
    assert len({len(line) for line in lines if line.startswith("| ")}) <= 2


def test_a_prompt_is_run_as_it_is_typed() -> None:
    def ids(*options: object) -> list[int]:
        done = command("compare", "stories260k", "--format", "json", *options)
        found: list[int] = json.loads(done.stdout)["ids"]
        return found

    with graphml.load("stories260k", "reference") as model:
        typed = model.encode("Hello there")
    assert ids("-p", "Hello there") == typed
    assert ids("-p", "Hello there", "--tokens", 5) == (typed * 5)[:5]
    assert len(ids()) == 8


def test_compare_as_json_and_the_worst(tmp_path: Path) -> None:
    with wrong_swiglu():
        done = command(
            "compare", STORIES, "--format", "json", "--worst", 3, "--graph", tmp_path / "g.json",
            "--fuse-a", ALONE, "--backend", "cpu,cpu", "--fuse-b", "none",
        )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found["values"]) == 3
    assert found["a"]["fuse"] == ALONE
    assert found["b"]["fuse"] == "none"
    assert found["values"][0]["nmse"] > 1e-2
    document = json.loads((tmp_path / "g.json").read_text())
    assert document["overlays"]["nmse"]["layers.0.attention"] < 1e-9
    command("graph", tmp_path / "g.json")


def test_bisect_finds_nothing_where_nothing_is_wrong() -> None:
    done = command("bisect", STORIES, "--tokens", 5)
    assert "nothing is wrong by itself" in done.stdout
    assert "\n0 values differ" not in done.stdout


def test_bisect_names_the_node_and_writes_a_repro(tmp_path: Path) -> None:
    with wrong_swiglu():
        done = command("bisect", STORIES, "--fuse-a", ALONE, "--repro", tmp_path, code=1)
    assert "first wrong: layers.0.swiglu (swiglu) in prefill" in done.stdout
    assert "the kernel is wrong: cpu" in done.stdout
    assert "made by the fusion swiglu of layers.0.swiglu, layers.0.silu" in done.stdout
    assert "_ffn.py:" in done.stdout
    assert "its parts, one by one: right; it is the fused kernel" in done.stdout
    assert f"wrote {tmp_path / 'repro.py'}" in done.stdout
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "repro.py")], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "they agree" in ran.stdout) == (0, True), ran.stderr


def test_bisect_as_json() -> None:
    with wrong_swiglu():
        found = json.loads(command("bisect", STORIES, "--fuse-a", ALONE, "--format", "json", code=1).stdout)
    first = found["findings"][0]
    assert (first["kind"], first["node"], first["fusion"]) == ("kernel", "layers.0.swiglu", "swiglu")
    assert [part["op"] for part in first["parts"]] == ["silu", "mul"]
    verdicts = {reading["node"]: reading["verdict"] for reading in reversed(found["readings"])}
    assert verdicts["layers.0.gate"] == "ok"
    assert verdicts["layers.0.ffn_residual"] == "inherited"


def test_a_saved_run_is_bisected(tmp_path: Path) -> None:
    with wrong_swiglu():
        command("compare", STORIES, "--fuse-a", ALONE, "--save", tmp_path / "run.npz")
    done = command("bisect", STORIES, "--saved", tmp_path / "run.npz", code=1)
    assert "first wrong: layers.0.swiglu (swiglu) in prefill" in done.stdout


PLACED = ["--backend", "cpu,cpu", "--place", "cpu:layers.0-2,reference:layers.3-4"]


def test_a_run_on_several_devices_is_held_against_one() -> None:
    compared = command("compare", STORIES, "--tokens", 5, *PLACED).stdout
    assert f"cpu,reference --place={PLACED[-1]} against cpu, 5 tokens" in compared
    assert compared.count("| copy cpu to reference |") == 4
    assert "wrong copy" not in compared
    judged = command("bisect", STORIES, "--tokens", 8, *PLACED).stdout
    assert "nothing is wrong by itself" in judged
    assert "- copies between devices, 2 in a step" in judged


def test_a_wrong_copy_between_devices_is_told(tmp_path: Path) -> None:
    with faults.wrong_copy("layers.2.ffn_residual"):
        compared = command("compare", STORIES, "--tokens", 5, *PLACED, "--worst", 1).stdout
        judged = command("bisect", STORIES, "--tokens", 8, *PLACED, "--repro", tmp_path / "no", code=1).stdout
        command("compare", STORIES, *PLACED, "--save", tmp_path / "run.npz")
    said = "wrong copy in prefill: layers.2.ffn_residual from cpu to reference, built at llama.py:"
    assert said in compared
    assert "first wrong: layers.2.ffn_residual, copied from cpu to reference, in prefill" in judged
    assert "built at llama.py:" in judged
    assert not (tmp_path / "no").exists()
    saved = command("bisect", STORIES, "--saved", tmp_path / "run.npz", "--format", "json", code=1).stdout
    first = json.loads(saved)["findings"][0]
    assert (first["kind"], first["copied"]["value"]) == ("copy", "layers.2.ffn_residual")


def test_a_repro_of_a_run_on_several_devices_is_of_the_node_s_own(tmp_path: Path) -> None:
    with wrong_swiglu():
        place = ["--place", "reference:layers.0-2,cpu:layers.3-4", "--fuse-a", ALONE]
        done = command("bisect", STORIES, "--tokens", 8, *place, "--repro", tmp_path, code=1)
    assert "first wrong: layers.3.swiglu (swiglu) in prefill" in done.stdout
    assert "the kernel is wrong: cpu computes" in done.stdout
    title = '"""layers.3.swiglu (swiglu): cpu against reference'
    assert (tmp_path / "repro.py").read_text().startswith(title)


def test_a_model_without_vocabulary(tmp_path: Path) -> None:
    path = golden.build(golden.read("llama-moe"), tmp_path / "moe.gguf")
    assert "nothing is wrong" in command("bisect", path).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--format", "html"], "--format: wanted one of md, json; got 'html'"),
        (
            ["compare", "--backend", "cpu,cpu,cpu"],
            "--backend: wanted A,B, or A for A,reference; got 'cpu,cpu,cpu'",
        ),
        (["compare", "--backend", "cpu,nowhere"], "--backend: no backend 'nowhere' is installed"),
        (["compare", "--a", "cpu"], "--a: wanted --backend A,B, of which A is judged and B is the judge"),
        (["bisect", "--b", "cpu"], "--b: wanted --backend A,B, of which A is judged"),
        (["compare", "--save", "run.txt"], "--save: wanted a name that ends in .npz"),
        (["bisect", "--fuse-a=-nothing"], "'nothing'"),
        (["compare", "--place", "cpu"], "place: wanted BACKEND:WHAT, such as cpu:layers.0-14; got 'cpu'"),
        (["bisect", "--place", "gpu9:layers.0"], "--place: no backend 'gpu9' is installed"),
        (
            ["bisect", "--place", "reference:layers.9"],
            "place: 'reference:layers.9' names no node of the graph",
        ),
        (
            ["bisect", "--place", "cpu:layers.0", "--saved", __file__],
            "--saved: wanted no --fuse-a, --place and --prompt: the run has its own",
        ),
        (["bisect", "--saved", "missing.npz"], "--saved: missing.npz: no such file"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str) -> None:
    name, *rest = arguments
    done = command(name, STORIES, *rest, code=2)
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_the_judge_is_not_compared_with_itself() -> None:
    done = CliRunner().invoke(app, ["compare", str(STORIES), "--backend", "reference"])
    assert done.exit_code == 2
    assert "wanted another than reference" in " ".join(done.output.split())
