"""Prefixes on disk: found by later processes, bounded, and where anything is wrong with them, computed."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from graphml_models import llama

import graphml
from graphml.api import engine_opening
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.store import block_files
from graphml.runtime.store.stored_prefixes import StoredPrefixes
from tests import tiny_model

PROMPT = [3 + i * 7 % 250 for i in range(200)]
OTHERS = [[3 + (i * i + number) % 250 for i in range(150)] for number in range(6)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("store") / "model.gguf", n_ctx=2304)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, threads=2, n_batch=32) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(model: graphml.Model) -> list[list[int]]:
    """The tokens of each prompt without a store or a prefix cache."""
    with model.engine(max_sequences=1, n_ctx=256, prefix_cache=False) as engine:
        return [engine.submit(ids, max_tokens=6).result().tokens for ids in (PROMPT, *OTHERS)]


def asked(model: graphml.Model, store: Path | None, prompts: list[list[int]], **named: Any) -> list[Any]:
    """The results of prompts, one after the other, of an engine of their own."""
    with model.engine(max_sequences=2, n_ctx=256, store=store, **named) as engine:
        return [engine.submit(ids, max_tokens=6).result() for ids in prompts]


def block_bytes() -> int:
    """Keys and values of 32 tokens in f16."""
    of_a_token = 2 * tiny_model.LAYERS * tiny_model.WIDTH // tiny_model.HEADS * tiny_model.KV_HEADS
    return 32 * of_a_token * 2


def blocks(store: Path) -> list[Path]:
    return sorted(store.glob("*/*.safetensors"))


ASKS = """
import json, sys, graphml
ids = [3 + i * 11 % 250 for i in range(2000)]
with graphml.load(sys.argv[1], threads=1) as model, model.engine(n_ctx=2304, store=sys.argv[2]) as engine:
    result = engine.submit(ids, max_tokens=8).result()
    print(json.dumps([result.n_cached, result.tokens, engine.stats().hit_tokens]))
"""


def test_a_second_process_computes_under_five_percent_of_a_long_prompt(path: Path, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", ASKS, str(path), str(tmp_path / "store")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        found.append(json.loads(done.stdout))
    (first, tokens, _), (second, same, hits) = found
    assert (first, tokens) == (0, same)
    assert second == hits == 1984
    assert 2000 - second < 0.05 * 2000


def test_a_store_left_open_is_written_when_the_process_ends(path: Path, tmp_path: Path) -> None:
    code = (
        "import sys, graphml\nmodel = graphml.load(sys.argv[1], threads=1)\n"
        "engine = model.engine(n_ctx=256, store=sys.argv[2])\n"
        "print(engine.submit([3 + i * 7 % 250 for i in range(200)], max_tokens=2).result().n_cached)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "store")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [(one.stdout, one.stderr) for one in runs] == [("0\n", ""), ("192\n", "")]


def test_another_engine_finds_what_one_has_computed(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path
) -> None:
    (first,) = asked(model, tmp_path / "store", [PROMPT])
    assert len(blocks(tmp_path / "store")) == 6
    second, longer = asked(model, tmp_path / "store", [PROMPT, [*PROMPT, 9, 9, 9]])
    assert (first.n_cached, second.n_cached, longer.n_cached) == (0, 192, 200)
    assert first.tokens == second.tokens == expected[0]
    assert len(blocks(tmp_path / "store")) == 6


def test_evicted_blocks_are_written_and_found_by_the_same_engine(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path
) -> None:
    """The memory holds 14 blocks, one prompt takes 7 of them."""
    with model.engine(14 * block_bytes(), max_sequences=1, n_ctx=256, store=tmp_path / "store") as engine:
        for ids, tokens in zip((PROMPT, *OTHERS), expected, strict=True):
            assert engine.submit(ids, max_tokens=6).result().tokens == tokens
        prefixes = engine._loop.prefixes
        assert isinstance(prefixes, StoredPrefixes)
        while prefixes._store._waiting:  # it writes beside
            time.sleep(0.01)
        again = engine.submit(PROMPT, max_tokens=6).result()
        assert (again.n_cached, again.tokens) == (192, expected[0])


@pytest.mark.parametrize("constant_hash", [False, True])
def test_many_requests_in_little_memory_get_their_own_tokens(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path, constant_hash: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if constant_hash:
        same = partial(BlockPool, hash_block=lambda parent, tokens: b"x")
        monkeypatch.setattr(engine_opening, "BlockPool", same)
    chance = random.Random(1)
    for _ in range(2):
        memory = 16 * block_bytes()
        with model.engine(memory, max_sequences=3, n_ctx=256, store=tmp_path / "store") as engine:
            numbers = [chance.randrange(7) for _ in range(24)]
            handles = [engine.submit((PROMPT, *OTHERS)[number], max_tokens=6) for number in numbers]
            for number, handle in zip(numbers, handles, strict=True):
                assert handle.result().tokens == expected[number]
            stats = engine.stats()
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert blocks(tmp_path / "store")


def test_the_folder_is_bounded_and_keeps_what_was_used_last(model: graphml.Model, tmp_path: Path) -> None:
    store = tmp_path / "store"
    asked(model, store, [PROMPT])
    size = blocks(store)[0].stat().st_size
    limit = 14 * size
    for ids in (*OTHERS[:4], PROMPT, *OTHERS[4:]):
        asked(model, store, [ids], store_bytes=limit)
        assert sum(one.stat().st_size for one in blocks(store)) <= limit
    found = [asked(model, store, [ids], store_bytes=limit)[0].n_cached for ids in (OTHERS[5], OTHERS[0])]
    assert found == [128, 0]


def test_other_models_types_and_backends_have_blocks_of_their_own(
    path: Path, model: graphml.Model, tmp_path: Path
) -> None:
    store, other = tmp_path / "store", tiny_model.write(tmp_path / "other.gguf", n_ctx=2304, seed=6)
    asked(model, store, [PROMPT])
    for file, named in (
        (other, {}), (path, {"kv": "f32"}), (path, {"backend": "reference"}), (path, {"deterministic": True}),
    ):  # fmt: skip
        with graphml.load(file, threads=2, n_batch=32, **named) as one:  # type: ignore[arg-type]
            assert [asked(one, store, [PROMPT])[0].n_cached for _ in range(2)] == [0, 192]
    assert asked(model, store, [PROMPT])[0].n_cached == 192


def test_a_changed_architecture_computes_again(path: Path, tmp_path: Path) -> None:
    arch, text = tmp_path / "arch.py", Path(llama.__file__).read_text()
    for change in ("", "\n# another one\n"):
        arch.write_text(text + change)
        with graphml.load(path, "reference", n_batch=32, arch=arch) as one:
            assert [asked(one, tmp_path / "store", [PROMPT])[0].n_cached for _ in range(2)] == [0, 192]


@pytest.mark.parametrize("backend", ["opencl", "wgpu"])
def test_gpus_have_stores_too(path: Path, tmp_path: Path, backend: str) -> None:
    with graphml.load(path, backend, n_batch=32) as model:
        found = [asked(model, tmp_path / "store", [PROMPT])[0] for _ in range(2)]
        assert [one.n_cached for one in found] == [0, 192]
        assert found[0].tokens == found[1].tokens


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-40] ^= 8
    file.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": emptied, "flipped": flipped, "gone": Path.unlink,
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}  # fmt: skip


@pytest.mark.parametrize("what", list(DAMAGE))
def test_damaged_blocks_are_computed_again(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path, what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    store = tmp_path / "store"
    with caplog.at_level(logging.WARNING):
        asked(model, store, [PROMPT, OTHERS[0]])
        assert not caplog.records
        for file in blocks(store)[::2]:
            DAMAGE[what](file)
        first, second = asked(model, store, [PROMPT, OTHERS[0]])
    assert [first.tokens, second.tokens] == expected[:2]
    assert first.n_cached + second.n_cached < 192 + 128
    told = [one.getMessage() for one in caplog.records]
    assert len(told) <= 2
    assert bool(told) == (what != "gone")
    assert all(text.startswith(f"store {store}: ") for text in told)


def test_a_block_under_another_ones_name_is_not_used(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    asked(model, store, [PROMPT, OTHERS[0]])
    files = blocks(store)
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(content)
    first, second = asked(model, store, [PROMPT, OTHERS[0]])
    assert (first.n_cached, second.n_cached) == (0, 1)  # one id of the first, in memory
    assert [first.tokens, second.tokens] == expected[:2]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")]
)
def test_a_folder_that_cannot_be_written_is_told_once(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, error: OSError,
) -> None:  # fmt: skip
    def fails(*arguments: Any, **named: Any) -> None:
        raise error

    store = tmp_path / "store"
    asked(model, store, [PROMPT])
    monkeypatch.setattr(block_files, "write_tensors", fails)
    monkeypatch.setattr(block_files.os, "utime", fails)
    with caplog.at_level(logging.WARNING):
        first, second = asked(model, store, [PROMPT, OTHERS[0]])
    assert (first.n_cached, second.n_cached) == (192, 1)
    assert [first.tokens, second.tokens] == expected[:2]
    (told,) = (one.getMessage() for one in caplog.records)
    assert told == f"store {store}: cannot be written, and keeps what it has: {error!r}"


def test_a_folder_that_cannot_be_made_is_told_and_not_used(
    model: graphml.Model, expected: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        (found,) = asked(model, tmp_path / "file" / "store", [PROMPT])
    assert found.tokens == expected[0]
    (told,) = (one.getMessage() for one in caplog.records)
    assert "cannot be used: [Errno 20] Not a directory" in told


def test_folders_of_others_and_wrong_values_are_refused(model: graphml.Model, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    file = tmp_path / "notes.txt"
    damaged, later = tmp_path / "damaged", tmp_path / "later"
    for folder, text in ((damaged, "{"), (later, '{"format": "graphml-store", "version": 9}')):
        folder.mkdir()
        (folder / "graphml-store.json").write_text(text)
    for named, reason in (
        ({"store": tmp_path}, "holds other files, .*; wanted a folder of its own"),
        ({"store": file}, "wanted a folder, got .*which is something else"),
        ({"store": damaged}, "is damaged; remove the folder"),
        ({"store": later}, "wanted version 1 of graphml-store"),
        ({"store": 7}, "store: wanted a path, got 7"), ({"store": "\0"}, "store: "),
        ({"store": tmp_path / "new", "store_bytes": 0}, "store_bytes: wanted a whole number of bytes"),
        ({"store": tmp_path / "new", "store_bytes": 100}, "store_bytes: wanted room for a block of"),
        ({"store_bytes": 100}, "store_bytes: wanted store, too"),
        ({"store": tmp_path / "new", "prefix_cache": False}, "store: wanted prefix_cache, too"),
    ):  # fmt: skip
        with pytest.raises(graphml.UsageError, match=reason):
            model.engine(**named)  # type: ignore[arg-type]
    assert file.read_text() == "mine"
