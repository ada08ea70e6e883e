"""What a person asks of a model first: its facts, the default model, one line for each kind of inspection."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.inspect.dumps.explain import explain
from graphml.inspect.dumps.without_weights import describe_model
from graphml.loading import fetch
from tests.adapter_files import write_vectors
from tests.stories import STORIES


@pytest.fixture(scope="module")
def stories() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, threads=1, n_batch=32, kv="f32") as opened:
        yield opened


def test_load_without_a_name_opens_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "DEFAULT_MODEL", "stories260k")
    with graphml.load() as model:
        assert model.path.name == STORIES.name


def test_facts_of_the_file(model: graphml.Model, stories: graphml.Model) -> None:
    assert (model.context_length, model.vocab_size) == (model.n_ctx, model.n_vocab)
    assert model.metadata["general.architecture"] == "llama"
    assert stories.n_params == 260_032  # the output shares the table of embeddings
    assert isinstance(model.tokenizer, graphml.Tokenizer)
    assert (model.tokenizer.bos_id, model.tokenizer.eos_id) == (model.tokenizer.bos, model.tokenizer.eos)


def test_the_graph_after_a_pass(model: graphml.Model) -> None:
    built, last = model.graph("build"), model.graph()
    assert {"layers.0.q", "layers.1.q"} <= {node.name for node in built.nodes}
    assert {node.op.name for node in built.nodes} < {node.op.name for node in model.graph("fuse").nodes} | {
        node.op.name for node in built.nodes
    }
    assert "logits" in last.outputs
    assert (repr(model.graph), str(model.graph)) == (repr(last), str(last))
    assert [node.name for node in model.graph.nodes] == [node.name for node in last.nodes]
    with pytest.raises(AttributeError, match="'Graph' object has no attribute 'nods'"):
        _ = model.graph.nods
    with pytest.raises(
        graphml.UsageError, match=r"after: wanted one of build, .*; got 'fusee'\. Did you mean 'fuse'"
    ):
        model.graph("fusee")


def test_an_explanation_prints_as_lines(model: graphml.Model) -> None:
    story = model.explain("layers.0.q")
    assert dict(story) == explain(describe_model(model.executor), "layers.0.q")
    assert repr(story).startswith("layers.0.q\n  written in")
    with pytest.raises(graphml.UsageError, match=r"no node is called 'layers.0.qq'"):
        model.explain("layers.0.qq")


def test_a_profile_of_a_prompt(stories: graphml.Model, tmp_path: Path) -> None:
    profile = stories.profile("Once upon a time", max_tokens=2, rounds=1)
    for ending, begin in (
        ("html", "<!doctype html>"),
        ("json", "{"),
        ("md", "stories260k.bin: llama on cpu"),
    ):
        profile.save(tmp_path / f"profile.{ending}")
        assert (tmp_path / f"profile.{ending}").read_text().lower().startswith(begin)
    assert json.loads((tmp_path / "profile.json").read_text()) == profile.to_dict()
    for name, says in (("profile.txt", r"ends with \.html, \.json, \.md"), ("no/p.md", "cannot be written")):
        with pytest.raises(graphml.UsageError, match=f"path: .*{says}"):
            profile.save(tmp_path / name)
    assert (profile.n_prompt, profile.n_gen) == (5, 2)
    assert stories.profile(7, max_tokens=0, rounds=1).n_prompt == 7
    with pytest.raises(graphml.UsageError, match=r"no block: model.profile\(prompt, max_tokens\)"), profile:
        pass


def test_perplexity_of_a_text(model: graphml.Model) -> None:
    estimate = model.perplexity("hello world, " * 40, n_ctx=16, chunks=2)
    assert (estimate.chunks, estimate.count) == (2, 14)
    assert estimate.value > 1
    with pytest.raises(graphml.UsageError, match=r"text: wanted at least 8 tokens, got 1"):
        model.perplexity("hello")


def test_two_backends_are_compared(model: graphml.Model, stories: graphml.Model) -> None:
    comparison = graphml.compare(stories)
    assert (comparison.a, comparison.b, comparison.n_tokens) == ("cpu", "reference", 5)
    (worst,) = comparison.worst(1)
    assert 0 < worst.difference.nmse == worst.nmse < 1e-6
    assert worst.name == worst.node
    with graphml.load(STORIES, "reference", kv="f32") as other:
        assert len(graphml.compare(stories, other, [1, 5]).rows) > 20
    with pytest.raises(graphml.UsageError, match=r"b: wanted a model of the same file .*; got one of .*tiny"):
        graphml.compare(stories, model)
    changed = {".attention.layer_norm_rms_epsilon": 0.5}
    with graphml.load(STORIES, kv="f32", quant="q8", override_kv=changed) as other:
        assert graphml.compare(other, "reference", [1, 5]).worst(1)[0].difference.nmse < 1e-3
        with pytest.raises(graphml.UsageError, match="wanted a model of the same file and values"):
            graphml.compare(stories, other)


def test_adapters_are_not_compared(stories: graphml.Model, tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "vector.gguf", {1: np.ones(64, np.float32)})
    with (
        graphml.load(STORIES, control_vectors=[(vectors, 1.0)]) as steered,
        pytest.raises(graphml.UsageError, match="without adapters and control vectors"),
    ):
        graphml.compare(steered)


def test_a_handle_is_awaited_and_an_engine_left_in_an_event_loop(model: graphml.Model) -> None:
    wanted = model.generate("hello", max_tokens=4).tokens

    async def asked() -> list[graphml.Result]:
        async with model.engine() as engine:
            handles = [engine.submit("hello", max_tokens=4) for _ in range(2)]
            results = [await handle for handle in handles]
            results.append(await handles[0])  # again
        with pytest.raises(graphml.UsageError, match="engine: it was closed"):
            engine.submit("hello")
        return results

    assert [result.tokens for result in asyncio.run(asked())] == [wanted] * 3


def test_names_of_the_package_are_its_own(tmp_path: Path) -> None:
    code = """
import graphml
names = {}
exec("from graphml import *", names)
names.pop("__builtins__")
print(sorted(set(names) ^ set(graphml.__all__)))
print([name for name in dir(graphml) if name not in names and not name.startswith("__")])
print(all(getattr(graphml, name) is not None for name in graphml.__all__))
print([name for name in ("annotations", "importlib", "Any", "TYPE_CHECKING") if name in dir(graphml)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\nTrue\n[]\n"
