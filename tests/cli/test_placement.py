"""`graphml placement`, and the options that place nodes, as users give them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graphml.cli.main import app
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES

BOTH = ["--backend", "cpu,reference", "-t", "2"]
SPLIT = [*BOTH, "--place", "cpu:layers.0-2,reference:layers.3-4"]


def graphml_command(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


def test_the_table_tells_devices_reasons_parts_and_copies() -> None:
    text = graphml_command("placement", STORIES, *SPLIT).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].endswith("stories260K.bin on cpu,reference, cpu:layers.0-2,reference:layers.3-4")
    assert [line for line in lines if line.startswith(("parts", "copies"))] == [
        "parts: 2",
        "copies: 2; 288 B cross between backends per token, 144.0 KiB in a step of 512",
    ]
    assert "layers.2.ffn_residual part 0 to 1 cpu to reference 256 B" in lines
    assert any("rule cpu:layers.0-2" in line for line in lines)
    assert any(line.startswith("reference") and "to avoid a cut" in line for line in lines)
    every = graphml_command("placement", STORIES, *SPLIT, "--nodes").stdout
    assert "layers.4.attention" in every
    assert len(every.splitlines()) > 100 > len(lines)


def test_json_has_every_node_once_and_bytes_that_add_up() -> None:
    found = json.loads(graphml_command("placement", STORIES, *SPLIT, "--json").stdout)
    names = [node["name"] for node in found["nodes"]]
    assert len(set(names)) == len(names)
    where = {node["name"]: (node["backend"], node["part"]) for node in found["nodes"]}
    assert where["layers.2.attention"] == ("cpu", 0)
    assert where["logits"] == ("reference", 1)
    assert where["cache.4.k"][0] == "reference"
    assert sum(copy["token_bytes"] for copy in found["copies"]) == found["crossing"]["token_bytes"] == 288
    assert found["crossing"]["batch_bytes"] == 512 * 288
    for device in found["devices"]:
        for arena in (device["arena_decode"], device["arena_prefill"]):
            assert arena["peak"] == arena["lower_bound"] + arena["waste"] > 0


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("llama-plain", "reference:attention"),
        ("mamba-plain", "reference:layers.1"),
        ("granitehybrid-experts", "reference:attention"),
        ("t5-plain", ""),
    ],
)
def test_counts_agree(name: str, rules: str, tmp_path: Path) -> None:
    """With one another, and with what `plan` says the model needs; recurrent states and encoders count."""
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    options = ["--backend", "cpu,reference", "--place", rules] if rules else ["--backend", "reference"]
    found = json.loads(graphml_command("placement", path, *options, "-b", 16, "--json").stdout)
    computed = [node for node in found["nodes"] if node["computed"]]
    assert 20 < len(computed) < len(found["nodes"])
    for kind, number in (("parts", "index"), ("devices", "backend")):
        for one in found[kind]:
            of = "part" if kind == "parts" else "backend"
            assert one["nodes"] == sum(node[of] == one[number] for node in computed)
        assert sum(one["nodes"] for one in found[kind]) == len(computed)
    need = json.loads(graphml_command("plan", path, *options, "-b", 16, "--json").stdout)
    for device, plan in (
        ("state_bytes_per_token", "cache_per_token"), ("state_bytes_per_sequence", "recurrent"),
        ("weight_bytes", "weights"),
    ):  # fmt: skip
        assert sum(one[device] for one in found["devices"]) == need[plan]
    for arena in ("arena_decode", "arena_prefill"):
        assert sum(one[arena]["peak"] for one in found["devices"]) == need[arena]
    text = graphml_command("placement", path, *options, "-b", 16).stdout
    why = text[text.index("why:") : text.index("parts:")]
    assert why.startswith(f"why: {len(computed)} nodes; {len(found['nodes']) - len(computed)} ")
    assert sum(int(line.split()[1]) for line in why.splitlines()[1:]) == len(computed)


def test_one_backend_has_one_part_and_nothing_crosses() -> None:
    found = json.loads(graphml_command("placement", STORIES, "--json").stdout)
    assert (len(found["parts"]), found["copies"], found["crossing"]["token_bytes"]) == (1, [], 0)
    assert {node["reason"] for node in found["nodes"]} == {"preferred"}


def test_a_split_model_answers_as_a_whole_one() -> None:
    prompt = ["-p", "Once", "-n", 8, "--kv", "f32", "--temp", 0]
    whole = graphml_command("run", STORIES, *prompt, "--backend", "reference").stdout
    assert graphml_command("run", STORIES, *prompt, *SPLIT, "--strict").stdout == whole


@pytest.mark.parametrize("command", ["placement", "plan"])
def test_a_rule_that_names_nothing_is_one_line(command: str) -> None:
    done = graphml_command(command, STORIES, "--backend", "cpu,reference", "--place", "cpu:softmax", code=2)
    assert "place: 'cpu:softmax' names no node of the graph" in done.output
