"""What `plan` and `doctor` say of a model's header and of the machine."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from graphml.backend import Backend, Device
from tests import tiny_model
from tests.cli.test_commands import REFERENCE, graphml_command


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_plan_reckons_without_weights(path: Path) -> None:
    found = json.loads(graphml_command("plan", path, "-c", 64, "--kv", "f16", "--json", *REFERENCE).stdout)
    kv_width = tiny_model.WIDTH // tiny_model.HEADS * tiny_model.KV_HEADS
    assert found["cache_per_token"] == 2 * 2 * kv_width * tiny_model.LAYERS
    assert found["cache"] == 64 * found["cache_per_token"]
    assert found["weights"] == json.loads(graphml_command("info", path, "--json").stdout)["parameters"] * 4
    assert found["arena_prefill"] > found["arena_decode"] > 0
    parts = ("weights", "cache", "arena_prefill", "arena_decode")
    assert found["total"] == sum(found[part] for part in parts)
    text = graphml_command("plan", path, *REFERENCE).stdout
    assert "memory of one session of" in text.splitlines()[0]
    for words in ("intermediate results, prompt", "a step of 512 tokens (--batch)", "fits: "):
        assert words in text
    assert "memory of one session of 160 tokens (-c)" in text
    assert "  keys and values (f16) " in text
    double = json.loads(graphml_command("plan", path, "-c", 64, "--kv", "f32", "--json", *REFERENCE).stdout)
    assert double["cache"] == 2 * found["cache"]


def test_plan_names_what_the_graph_leaves_unused(path: Path, tmp_path: Path) -> None:
    found = json.loads(graphml_command("plan", path, "--json", *REFERENCE).stdout)
    # The tensors' shapes say how wide the feed-forward is.
    assert (found["unused_tensors"], found["unread_keys"]) == ([], ["llama.feed_forward_length"])
    bigrams = tmp_path / "bigrams.py"
    bigrams.write_text(
        "from graphml_models.llama import Config\n\ndef build(g, config, weights):\n"
        "    x = g.rows(g.embed(weights['token_embd'], g.tokens), g.output_rows)\n"
        "    return weights.linear(x, 'output')\n"
    )
    text = graphml_command("plan", path, "--arch", bigrams, *REFERENCE).stdout
    (unused,) = [line for line in text.splitlines() if line.startswith("  tensors in the file ")]
    assert "blk.0.attn_q.weight" in unused
    assert "token_embd" not in unused
    assert "  metadata that this architecture need not read: llama.feed_forward_length\n" in text


def test_doctor_tells_the_machine_and_every_backend() -> None:
    found = json.loads(graphml_command("doctor", "--json", "-t", 1).stdout)
    assert found["threads"] == 1
    assert found["bandwidth"] > 1e8
    assert found["backends"]["reference"] == {"usable": True, "reason": None, "facts": {}}
    assert set(found["backends"]) >= {"cpu", "reference"}
    text = graphml_command("doctor").stdout
    n_archs = len(found["architectures"])
    assert f"architectures {n_archs} (--verbose lists them)\n" in text
    assert ", ".join(found["architectures"]) in graphml_command("doctor", "--verbose").stdout
    assert "GB/s with" in text
    assert "backend reference: usable" in text


def test_doctor_says_where_the_metadata_of_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    for name in ("requires", "version"):
        monkeypatch.setattr(f"graphml.cli.doctor.metadata.{name}", missing)
    monkeypatch.setattr("graphml.loading.discovery.installed", lambda group: ())
    shown = graphml_command("doctor").stdout
    assert "graphml       not installed: Python finds no metadata of graphml-engine" in shown
    assert "numpy missing" in shown
    assert not json.loads(graphml_command("doctor", "--json").stdout)["installed"]


def test_doctor_measures_the_memory_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(name="a", driver="b", kind="other", bandwidth=lambda: 4e12, close=lambda: None)
    made = Backend("fast", lambda threads: cast(Device, device), lambda node: None, reads_back=True)
    monkeypatch.setattr("graphml.loading.discovery.backend_names", lambda: ["fast"])
    monkeypatch.setattr("graphml.loading.discovery.backend", lambda name: made)
    assert "backend fast: usable\n  memory is read at 4000.0 GB/s\n" in graphml_command("doctor").stdout
    assert json.loads(graphml_command("doctor", "--json").stdout)["backends"]["fast"]["bandwidth"] == 4e12


def test_doctor_tells_why_a_backend_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(name: str) -> None:
        raise ImportError(f"no module for {name}")

    monkeypatch.setattr("graphml.loading.discovery.backend", backend)
    assert "backend cpu: cannot be used: ImportError: no module for cpu" in graphml_command("doctor").stdout
