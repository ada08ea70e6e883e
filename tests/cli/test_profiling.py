"""The commands that measure and report, on a tiny model."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import graphml
from graphml.backend import Device
from graphml.cli import profile
from graphml.compiler.multi_device import PartsDevice
from tests import tiny_model
from tests.cli.test_commands import graphml_command

SMALL = ["-p", 8, "-n", 4, "-r", 1, "-t", 2]
NO_ANSWER = ["-p", 8, "-n", 0, "-r", 1, "-t", 2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_profile_shows_tables(path: Path, backend: str) -> None:
    text = graphml_command("profile", path, *SMALL, "--backend", backend).stdout
    assert text.startswith(f"tiny.gguf: llama on {backend}, ")
    assert "\n## prompt\n8 tokens in " in text
    assert "\n## generation\n" in text
    for column in ("| phase ", "| op ", "| layer "):
        assert text.count(column) == 2
    only = graphml_command("profile", path, *SMALL, "--backend", backend, "--by", "node").stdout
    assert "layers.1.ffn_norm" in only
    assert "| phase " not in only.replace("| layer | phase ", "")


def test_profile_of_a_device_compares_with_its_own_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of several with none."""
    device = SimpleNamespace(name="a", driver="b", kind="other", bandwidth=lambda: 5e12)
    assert profile._bandwidth(cast(Device, device), 1) == 5e12
    monkeypatch.setattr("graphml.cli.terminal.machine.read_bandwidth", lambda threads: threads * 1e9)
    with graphml.load(path, "reference") as model:
        assert profile._bandwidth(model.executor.device, 3) == 3e9
    assert profile._bandwidth(PartsDevice([], 1), 1) == 0.0


def test_profile_as_csv_and_json(path: Path) -> None:
    rows = list(
        csv.DictReader(io.StringIO(graphml_command("profile", path, *SMALL, "--format", "csv").stdout))
    )
    assert {"stage", "op", "calls", "ms", "GB/s", "GFLOP/s", "bound by"} <= set(rows[0])
    assert {row["stage"] for row in rows} == {"prompt", "generation"}
    found = json.loads(graphml_command("profile", path, *SMALL, "--format", "json").stdout)
    assert (found["model"], found["threads"], found["n_prompt"], found["n_gen"]) == ("tiny.gguf", 2, 8, 4)
    assert all({"phase", "op", "layer", "node"} <= set(stage) for stage in found["stages"])
    found = json.loads(graphml_command("profile", path, *SMALL, "--format", "json", "--by", "op").stdout)
    assert not any("node" in stage for stage in found["stages"])


def test_profile_of_an_engines_steps(path: Path, tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "steps.png"
    options = ["-p", 40, "-n", 12, "-t", 2, "--sequences", 2]
    text = graphml_command("profile", path, *options, "--trace", trace, "--plot", picture).stdout
    assert text.startswith(
        "tiny.gguf: llama on cpu; 2 sequences generate 12 tokens each; two requests with one "
    )
    assert text.count("\n| rows of ") == text.count("\n| sequence ") == 1
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"2 tokens", "token", "computed", "found 32 ids"} <= names
    assert picture.stat().st_size > 5000
    found = json.loads(graphml_command("profile", path, *options, "--format", "json").stdout)
    assert (found["n_sequences"], found["n_prompt"], found["n_gen"]) == (2, 40, 12)
    assert sum(len(one["token_s"]) for one in found["requests"]) == 4 * 12


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sequences", 2, "--by", "op", "-r", 1], "--sequences: wanted no --by, --rounds"),
        (["--sequences", 2, "--graph", "g.json"], "--sequences: wanted no --graph"),
        (["--sequences", 2, "--format", "csv"], "--format: wanted md or json of --sequences; got 'csv'"),
        (["--sequences", 2, "--plot", "steps.gif"], "plot: wanted a file *.png or *.svg; got 'steps.gif'"),
        (["--plot", "steps.png"], "--plot: wanted --sequences too"),
    ],
)
def test_options_that_do_not_go_together(path: Path, options: list[object], told: str) -> None:
    assert told in graphml_command("profile", path, *options, code=2).stderr


def test_profile_with_and_without_a_fusion(path: Path) -> None:
    def ops(*options: object) -> set[str]:
        found = json.loads(graphml_command("profile", path, *SMALL, *options, "--format", "json").stdout)
        return {row["op"] for stage in found["stages"] for row in stage["op"]}

    assert "swiglu" not in ops("--fuse=none")
    assert ops("--fuse=none") != ops()


def test_profile_of_two_backends(path: Path) -> None:
    options = ["--backend", "cpu,reference", "--place", "reference:layers.1", "--format", "json"]
    found = json.loads(graphml_command("profile", path, *SMALL, *options).stdout)
    assert found["threads"] == 2
    for stage in found["stages"]:
        assert [row["layer"] for row in stage["layer"] if row["layer"] is not None] == [0, 1]
        assert all(row["ms"] > 0 for row in stage["layer"])
        assert {row["op"] for row in stage["node"] if row["layer"] == 1} >= {"attention", "mul_mat"}


def test_profile_writes_a_page(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "profile.html"
    assert graphml_command("profile", path, *SMALL, "-o", page).stdout == ""
    for text in (page.read_text(), graphml_command("profile", path, *SMALL, "--format", "html").stdout):
        assert text.startswith("<!doctype html>")
        assert text.endswith("</body></html>\n")
        assert "<caption" in text
        assert ">attention<" in text
    refused = graphml_command("profile", path, *SMALL, "--format", "html", "--by", "layer", code=2)
    assert "--by: wanted op, which a page has; got 'layer'" in refused.stderr


def test_the_prompt_is_as_long_as_the_context_has_room_for(path: Path) -> None:
    done = graphml_command("profile", path, "-n", 4, "-r", 1, "--format", "json", "--backend", "reference")
    assert json.loads(done.stdout)["n_prompt"] == 160 - 4 - 4


def test_profile_writes_a_trace(path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    graphml_command("profile", path, "-p", 0, *SMALL[2:], "--trace", trace)
    found = json.loads(trace.read_text())
    assert any(event["name"] == "logits" for event in found["traceEvents"])


def test_profile_writes_the_graph_with_its_times(path: Path, tmp_path: Path) -> None:
    dump = tmp_path / "graph.json"
    graphml_command("profile", path, *SMALL, "--graph", dump)
    told = json.loads(graphml_command("explain", dump, "--node", "layers.1.ffn_residual", "--json").stdout)
    assert told["final"]["name"] == "layers.1.ffn_residual"
    assert json.loads(dump.read_text())["overlays"]["time_us"]["layers.1.ffn_residual"] > 0
    graphml_command("profile", path, *NO_ANSWER, "--graph", dump)
    found = json.loads(dump.read_text())
    assert any("T<=512" in node["shape"] for node in found["passes"][-1]["nodes"])
    assert found["overlays"]["time_us"]["layers.1.ffn_residual"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "xml"], "--format: wanted one of md, csv, json, html; got 'xml'"),
        (["--by", "kernel"], "--by: wanted phase, op, layer, node; got 'kernel'"),
        (["--by", "op,layer", "--format", "csv"], "--by: wanted one table for csv"),
        (["-p", 0, "-n", 0], "wanted tokens to profile"),
        (["-p", 500], "--prompt-tokens: wanted at most 92 beside 64 tokens"),
        (["--fuse", "nothing"], "nothing"),
        (["--trace", "/no/such/folder/trace.json", *SMALL], "cannot be written"),
    ],
    ids=lambda value: " ".join(map(str, value[:2])) if isinstance(value, list) else "",
)
def test_errors_are_one_line(path: Path, arguments: list[object], says: str) -> None:
    done = graphml_command("profile", path, "--backend", "reference", *arguments, code=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_report_writes_a_zip(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.zip"
    assert graphml_command("report", path, "-o", target, "-t", 2).stdout == f"{target}\n"
    with zipfile.ZipFile(target) as archive:
        names = set(archive.namelist())
        assert names >= {
            "graph.json",
            "plan.txt",
            "placement.txt",
            "fusions.txt",
            "profile.md",
            "doctor.json",
        }
        assert "errors.txt" not in names
        assert "cache_folder" not in archive.read("doctor.json").decode()


def test_report_of_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    target = tmp_path / "report.zip"
    graphml_command("report", tmp_path / "broken.gguf", "-o", target)
    with zipfile.ZipFile(target) as archive:
        assert "WeightsError" in archive.read("errors.txt").decode()
    done = graphml_command("report", tmp_path / "broken.gguf", "-o", tmp_path / "no" / "report.zip", code=2)
    assert "cannot be written" in done.stderr
