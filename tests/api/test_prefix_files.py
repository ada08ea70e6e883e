"""Prefixes in files, of models with windows and recurrent states, too: saved, restored, forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import graphml
from graphml.errors import UsageError
from graphml.weights.tensor_file import TensorFile, write_tensors
from tests.sample_models import MODELS, write_model

IDS = [i * 7 % 80 for i in range(150)]
FOUND = 128  # ids of them that a prompt can go on from: where a block ends


@pytest.fixture(
    scope="module", params=["gemma3-plain", "llama4-chunks", "mamba-plain", "jamba-plain", "rwkv7-plain"]
)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("prefixes") / "model.gguf", *MODELS[request.param])


def opened(path: Path) -> graphml.Model:
    return graphml.load(path, "cpu", threads=1, n_batch=64, kv="f32", override_kv={".context_length": 512})


def asked(engine: graphml.Engine, ids: list[int] = IDS) -> tuple[int, list[int]]:
    result = engine.submit(ids, max_tokens=8).result()
    return result.n_cached, result.tokens


def test_a_prefix_goes_on_in_another_engine(path: Path, tmp_path: Path) -> None:
    file, extra = tmp_path / "prefix", b""
    with opened(path) as model, model.engine(max_sequences=2, n_ctx=256) as engine:
        first, tokens = asked(engine)
        n_saved, n_bytes = engine.prefix_files().save([*IDS, *tokens], extra, file)
        assert first == 0
        assert FOUND <= n_saved < len(IDS) + 8
        assert n_bytes == file.stat().st_size
    with opened(path) as model, model.engine(max_sequences=2, n_ctx=256) as engine:
        files = engine.prefix_files()
        ids, n_read = files.restore(file, extra)
        assert (ids, n_read) == ([*IDS, *tokens][:n_saved], n_bytes)
        assert asked(engine, [*IDS, *tokens])[0] == n_saved  # it goes on, too
        assert asked(engine) == (FOUND, tokens)
        assert files.restore(file, extra)[0] == ids  # beside what is there
        assert files.forget([*IDS, *tokens], extra) >= n_saved
        assert asked(engine) == (0, tokens)
        assert engine.stats().blocks_used == 0


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "in the store"])
def test_a_forgotten_prefix_is_in_no_store(path: Path, tmp_path: Path, stored: bool) -> None:
    """Nor is it written there because it is given up."""
    how: dict[str, Any] = {"max_sequences": 2, "n_ctx": 256, "store": tmp_path / "store"}
    with opened(path) as model:
        if stored:
            with model.engine(**how) as engine:
                asked(engine)
            with model.engine(**how) as engine:
                assert asked(engine)[0] == FOUND
        with model.engine(**how) as engine:
            tokens = asked(engine)[1]
            engine.prefix_files().forget([*IDS, *tokens], b"")
            assert asked(engine, IDS[:40])[0] == 0
            engine.prefix_files().forget(IDS[:40], b"")
        with model.engine(**how) as engine:
            assert asked(engine) == (0, tokens)


def altered(file: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy with other arrays, whose hashes are right."""
    with TensorFile(file) as one:
        about, arrays = one.about, load_file(file)
    change(arrays)
    write_tensors(found := file.with_name("altered"), about, arrays)
    return found


def without_an_id(arrays: dict[str, Any]) -> None:
    arrays.update({name: one[:-1] for name, one in arrays.items() if name.startswith(("tokens", "cells/"))})


def with_longer_windows(arrays: dict[str, Any]) -> None:
    for name, one in arrays.items():
        if not name.startswith(("tokens", "cells/", "states/")):
            arrays[name] = np.concatenate([one, *[one[:32]] * 9])


def test_files_of_other_sizes_are_refused(path: Path, tmp_path: Path) -> None:
    file, extra = tmp_path / "prefix", b""
    with opened(path) as model, model.engine(max_sequences=2, n_ctx=256) as engine:
        files, (_, tokens) = engine.prefix_files(), asked(engine)
        files.save([*IDS, *tokens], extra, file)
        files.forget([*IDS, *tokens], extra)
        with pytest.raises(UsageError, match="whole blocks of 32"):
            files.restore(altered(file, without_an_id), extra)
        longer = altered(file, with_longer_windows)
        if longer.stat().st_size > file.stat().st_size:
            with pytest.raises(UsageError, match="wanted float32"):
                files.restore(longer, extra)
        assert asked(engine) == (0, tokens)
        assert engine.stats().blocks_used == 0


def test_a_source_text_is_in_no_prefix(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", *MODELS["t5-plain"])
    with (
        opened(path) as model,
        model.engine(max_sequences=1) as engine,
        pytest.raises(UsageError, match="source text"),
    ):
        engine.prefix_files()
