"""graph, diff, explain, info and plan as commands."""

from __future__ import annotations

import base64
import importlib
import json
import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import pytest
import typer.testing
from graphml_reference.device import ReferenceDevice

import graphml
from graphml.cli.options import dumps
from graphml.ir.text import parse
from graphml.passes.fusion import all_ops
from graphml.weights import open_model
from tests import tiny_model
from tests.cli.test_commands import REFERENCE, graphml_command
from tests.stories import STORIES


def test_graph_writes_every_format(tmp_path: Path) -> None:
    for form, start in [
        ("text", "output logits"),
        ("dot", "digraph"),
        ("graphml", "<?xml"),
        ("json", '{"format": "graphml-1"'),
        ("model-explorer", '{"label": "stories260K.bin"'),
    ]:
        done = graphml_command("graph", STORIES, "--format", form, *REFERENCE)
        assert done.stdout.startswith(start)
        path = tmp_path / form
        assert graphml_command("graph", STORIES, "-f", form, "-o", path, *REFERENCE).stdout == ""
        if form != "json":  # that has the seconds of the passes
            assert path.read_text() == done.stdout
    assert graphml_command("graph", STORIES, "-f", "mermaid", "--collapse").stdout.startswith(
        "flowchart TD\n"
    )


def test_the_ending_of_a_file_is_its_format(tmp_path: Path) -> None:
    for ending, options, start in [
        ("html", [], "<!doctype html>"),
        ("DOT", [], "digraph"),
        ("mmd", [], "flowchart"),
        ("graphml", [], "<?xml"),
        ("json", [], '{"format": "graphml-1"'),
        ("json", ["-f", "model-explorer"], '{"label": "stories260K.bin"'),
        ("txt", [], "output logits"),
        ("log", ["-f", "dot"], "digraph"),
        ("log", [], "output logits"),
    ]:
        path = tmp_path / f"net.{ending}"
        graphml_command("graph", STORIES, "-o", path, *options, *REFERENCE)
        assert path.read_text().lower().startswith(start.lower())


def test_graph_shows_the_pass_layer_tokens_and_fusions_asked_for(tmp_path: Path) -> None:
    command = ["graph", STORIES, *REFERENCE]
    build = parse(graphml_command(*command, "--pass", "build").stdout, all_ops())
    fused = parse(graphml_command(*command, "--pass", "fuse").stdout, all_ops())
    unfused = parse(graphml_command(*command, "--pass", "fuse", "--fuse", "none").stdout, all_ops())
    assert len(fused.nodes) < len(build.nodes) == len(unfused.nodes)
    layer = json.loads(graphml_command(*command, "-f", "json", "--layer", 3).stdout)
    assert [found["name"] for found in layer["passes"]][:2] == ["build", "fuse"]
    assert {node["layer"] for found in layer["passes"] for node in found["nodes"] if node["inputs"]} == {3}
    collapsed = json.loads(graphml_command(*command, "-f", "json", "--collapse", "--pass", "build").stdout)
    assert [run["layers"] for run in collapsed["collapsed"]] == [[0, 1, 2, 3, 4]]
    prompt = parse(graphml_command(*command, "--tokens", 9).stdout, all_ops())
    assert str(prompt.leaves("input")["tokens"].shape[0]) == "T<=9"
    path = tmp_path / "net.graphml"
    graphml_command(*command, "--format", "graphml", "-o", path)
    assert len(nx.read_graphml(path)) == len(parse(graphml_command(*command).stdout, all_ops()).nodes)


def test_graph_reads_dumps(tmp_path: Path) -> None:
    path = tmp_path / "stories.json"
    graphml_command("graph", STORIES, "--format", "json", "-o", path, *REFERENCE)
    for options in [["--pass", "build", "-f", "dot"], ["--layer", 1], ["--collapse", "-f", "graphml"]]:
        again = graphml_command("graph", path, *options).stdout
        assert again == graphml_command("graph", STORIES, *options, *REFERENCE).stdout


def page_of(html: str) -> dict[str, Any]:
    """The document inside a page, its nodes still in columns."""
    packed = re.search(r'id="document">([A-Za-z0-9+/=]*)<', html)
    assert packed is not None
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed[1]), -15))["document"]
    return found


def test_a_page_holds_every_pass_and_opens_what_was_asked_for() -> None:
    command = ["graph", STORIES, "-f", "html", *REFERENCE]
    passes = [one["name"] for one in page_of(graphml_command(*command).stdout)["passes"]]
    assert len(passes) > 2
    for options, view in [
        ([], {"pass": passes[-1]}),
        (["--pass", "fuse"], {"pass": "fuse"}),
        (["--pass", "build", "--layer", 2], {"pass": "build", "layer": "2"}),
    ]:
        found = page_of(graphml_command(*command, *options).stdout)
        assert found["view"] == view
        assert [one["name"] for one in found["passes"]] == passes


def test_a_page_of_a_diff_names_both_sides_and_opens_the_layer(tmp_path: Path) -> None:
    page, dump = tmp_path / "both.html", tmp_path / "stories.json"
    graphml_command("graph", STORIES, "-f", "json", "-o", dump, *REFERENCE)
    unfused = ["--pass-a", "fuse", "--pass-b", "fuse", "--fuse-b=none"]
    for options, names in [
        (unfused, ["a: fuse, all fusions", "b: fuse, --fuse=none"]),
        (["--pass-a", "build", "--pass-b", "fuse", "--layer", 2], ["a: build", "b: fuse"]),
        (
            [dump, "--pass-a", "build", "--pass-b", "fuse"],
            ["a: stories260K.bin, build", "b: stories.json, fuse"],
        ),
    ]:
        graphml_command("diff", STORIES, *options, "--html", page, *REFERENCE, code=1)
        found = page_of(page.read_text())
        assert [one["name"] for one in found["passes"]] == names
        assert all("stories260K.bin on reference after " in one["title"] for one in found["passes"])
        assert found["view"].get("layer") == ("2" if "--layer" in options else None)
        assert {one["kind"] for one in found["difference"]} >= {"changed"}


def test_a_terminal_gets_a_large_graph_with_alike_layers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["graph", STORIES, *REFERENCE]
    whole, folded = (graphml_command(*command, *option).stdout for option in ([], ["--collapse"]))
    assert "layers.4." in whole
    assert "layers.4." not in folded
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda stream: True)
    assert graphml_command(*command).stdout == whole, "it is not large"
    monkeypatch.setattr(importlib.import_module("graphml.cli.graph"), "LARGE", 20)
    shown = graphml_command(*command)
    assert shown.stdout == folded
    assert "--no-collapse shows all" in shown.stderr
    assert graphml_command(*command, "--no-collapse").stdout == whole
    assert "layers.3." in graphml_command(*command, "--layer", 3).stdout
    assert graphml_command(*command, "-f", "dot").stdout.count("cluster_layer") == 5


@pytest.mark.parametrize("format", ["html", "json", "graphml", "model-explorer"])
def test_a_terminal_gets_no_file_of_another_program(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda stream: True)
    refused = graphml_command("graph", STORIES, *REFERENCE, "-f", format, code=2)
    assert f"--format {format}: wanted -o FILE, or a pipe" in refused.stderr
    graphml_command("graph", STORIES, *REFERENCE, "-f", format, "-o", tmp_path / "out")
    assert (tmp_path / "out").stat().st_size > 1000


def test_no_program_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no weights are read: what lowers a graph is what gets them."""
    monkeypatch.setattr(ReferenceDevice, "lower", None)
    graphml_command("graph", STORIES, *REFERENCE)
    with pytest.raises(TypeError):
        graphml.load(STORIES, backend="reference").session().eval([1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["graph", STORIES, "--format", "png"], "--format: wanted one of text, dot, mermaid, graphml, json"),
        (["graph", STORIES, "--pass", "fusion"], "pass: wanted one of build, fuse"),
        (["graph", STORIES, "--layer", 5], "layer: wanted 0 to 4; got 5"),
        (["graph", STORIES, "--layer", 1, "--collapse"], "--layer, --collapse: wanted one of them"),
        (["graph", STORIES, "--fuse", "-nothing"], "no fusion is called 'nothing'"),
        (["graph", STORIES, "-o", "/nowhere/x"], "--output /nowhere/x: cannot be written"),
        (["graph", __file__], "unknown kind of model file"),
    ],
    ids=lambda value: " ".join(map(str, value[2:])) if isinstance(value, list) else "",
)
def test_errors_are_one_line(arguments: list[object], says: str) -> None:
    done = graphml_command(*arguments, *REFERENCE, code=1 if "kind of model file" in says else 2)
    assert done.stdout == ""
    assert done.stderr.startswith("graphml: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_diff_tells_the_difference_and_by_its_exit_code(tmp_path: Path) -> None:
    dump, text = tmp_path / "stories.json", tmp_path / "stories.txt"
    graphml_command("graph", STORIES, "-f", "json", "-o", dump, *REFERENCE)
    graphml_command("graph", STORIES, "-o", text, *REFERENCE)
    for same in ([STORIES, STORIES], [STORIES, dump], [dump, text], [text, STORIES]):
        assert " 0 changed" in graphml_command("diff", *same, *REFERENCE).stdout
    for other in (
        [STORIES, "--pass-a", "build", "--pass-b", "fuse"],
        [STORIES, "--fuse-b=-swiglu"],
        [dump, STORIES, "--fuse-b=-swiglu"],
        [dump, "--pass-a", "build", "--pass-b", "fuse", "--layer", 2],
    ):
        done = graphml_command("diff", *other, *REFERENCE, code=1)
        assert "silu" in done.stdout
        assert done.stderr == ""
    found = json.loads(graphml_command("diff", STORIES, "--fuse-b=none", "--json", *REFERENCE, code=1).stdout)
    assert found["different"]
    page = tmp_path / "both.html"
    graphml_command("diff", STORIES, "--fuse-b=none", "--html", page, *REFERENCE, code=1)
    assert page.read_text().lower().startswith("<!doctype html>")
    both = graphml_command("graph", STORIES, "-f", "html", *REFERENCE).stdout
    assert both.lower().startswith("<!doctype html>")
    assert " --fuse=none (" in found["b"]


def test_explain_without_a_node_lists_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = graphml_command("explain", STORIES, *REFERENCE).stdout.split()
    assert {"layers.0.q", "layers.4.attention", "logits"} <= set(names)
    assert json.loads(graphml_command("explain", STORIES, "--json", *REFERENCE).stdout)["nodes"] == names
    assert graphml_command("explain", STORIES, "--node", names[-1], *REFERENCE).stdout.startswith(names[-1])
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda stream: True)
    shown = graphml_command("explain", STORIES, *REFERENCE).stdout.split()
    assert "layers.0.q" in shown
    assert "layers.4.q" not in shown


def test_a_word_that_names_a_node_alone_is_of_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(model: str | None, *rest: Any) -> Any:
        return dumps.document_of(str(STORIES) if model is None else model, *rest)

    monkeypatch.setattr("graphml.cli.explain.dumps", SimpleNamespace(document_of=default))
    for name in ("layers.3.silu", "blk.3.ffn_up.weight", "ffn_out-0", "Qcur-1"):
        alone = graphml_command("explain", name, *REFERENCE).output
        assert alone == graphml_command("explain", STORIES, name, *REFERENCE).output
    for name in ("smollm3", "phi-4", "gpt-2", "layers"):
        assert f"model '{name}'" in graphml_command("explain", name, *REFERENCE, code=2).stderr


def test_explain_tells_a_node_s_story(tmp_path: Path) -> None:
    dump = tmp_path / "stories.json"
    graphml_command("graph", STORIES, "-f", "json", "-o", dump, *REFERENCE)
    told = graphml_command("explain", STORIES, "--node", "layers.3.silu", *REFERENCE).stdout
    assert told == graphml_command("explain", dump, "--node", "layers.3.silu").stdout
    assert told.startswith("layers.3.silu\n  written in ")
    found = json.loads(graphml_command("explain", dump, "--node", "layers.3.silu", "--json").stdout)
    assert found["final"]["name"].startswith("layers.3.swiglu")
    several = ["--backend", "reference,cpu", "--place", "cpu:layers.3", "--threads", 1]
    for name, backend in [("layers.3.q", "cpu"), ("layers.2.q", "reference")]:
        placed = graphml_command("explain", STORIES, "--node", name, "--json", *several).stdout
        assert json.loads(placed)["final"]["backend"] == backend


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diff", STORIES], "wanted B, --fuse-a and --fuse-b, or --pass-a and --pass-b"),
        (["diff", STORIES, "--pass-a", "fused", "--pass-b", "build"], "pass: wanted one of build"),
        (["diff", STORIES, "nothing.gguf"], "model 'nothing.gguf': no such file"),
        (["explain", STORIES, "--node", "layers.3.ffn.up"], "did you mean layers.3.up"),
    ],
    ids=lambda value: " ".join(map(str, value[:1])) if isinstance(value, list) else "",
)
def test_wrong_questions_are_one_line(arguments: list[object], says: str) -> None:
    test_errors_are_one_line(arguments, says)


def test_info_prints_a_chat_template_whole(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    text = open_model(path).metadata.text("tokenizer.chat_template")
    assert text
    assert graphml_command("info", path, "--template").stdout == text.rstrip("\n") + "\n"
    assert "has no chat template" in graphml_command("info", STORIES, "--template", code=2).output


def test_a_plan_says_where_there_is_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml.cli.plan.free_memory", lambda: 1 << 20)
    text = graphml_command("plan", STORIES, *REFERENCE).stdout
    assert "too much: 1.0 MiB of main memory are free; a smaller -c or --kv q8_0 needs less" in text
