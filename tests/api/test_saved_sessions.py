"""Sessions in files: they go on as if they had never ended, and what cannot be restored is refused."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_models._samples import transformer
from safetensors import safe_open
from safetensors.numpy import save_file

import graphml
from graphml import SamplingParams, Session
from graphml.runtime.blocks.state_rows import state_names
from tests import tiny_model
from tests.backend_pairs import in_turn
from tests.golden import nmse
from tests.sample_models import MODELS, write_model

WARM = SamplingParams(temperature=1.2, top_p=0.9)
IDS = np.random.default_rng(2).integers(3, 80, 60).tolist()
KINDS = ["llama", "mamba-plain", "granitehybrid-experts", "t5-plain", "gemma3-plain"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_model.write(folder / "llama.gguf")
    tiny_model.write(folder / "other.gguf", seed=6)
    wide = transformer(
        "llama", "wide", n_head_kv=2, metadata={"attention.head_count": 2, "attention.head_count_kv": 1}
    )
    write_model(folder / "wide.gguf", "llama", wide)  # heads of 32, one block of a quantised cache
    for name in KINDS[1:]:
        write_model(folder / f"{name}.gguf", *MODELS[name])
    return folder


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[graphml.Model]:
    with graphml.load(folder / f"{request.param}.gguf", threads=2, n_batch=16) as opened:
        yield opened


@pytest.fixture(scope="module")
def llama(folder: Path) -> Iterator[graphml.Model]:
    with graphml.load(folder / "llama.gguf", threads=2, n_batch=16) as opened:
        yield opened


def begun(model: graphml.Model) -> Session:
    """A session that has read a prompt and generated some tokens, whose last one waits."""
    session = model.session(n_ctx=128, seed=7)
    list(session.generate(IDS[:16] if model.executor.encodes else IDS[:40], WARM, 6))
    return session


def restored(model: graphml.Model, path: Path) -> Session:
    found = model.restore(path)
    assert isinstance(found, Session)
    return found


def test_a_restored_session_goes_on_with_equal_logits_and_tokens(
    model: graphml.Model, tmp_path: Path
) -> None:
    session, path = begun(model), tmp_path / "one.safetensors"
    session.save(path)
    session.save(path)  # a second time, over the first
    again = restored(model, path)
    assert (again.tokens, again.source, again.n_ctx, again.seed) == (
        session.tokens, session.source, 128, 7,
    )  # fmt: skip
    assert again.chooses == WARM
    steps = model.executor.n_steps
    np.testing.assert_array_equal(again.eval([5]), session.eval([5]))
    assert model.executor.n_steps - steps <= 4  # the last token and the new one, of both; not all of it
    assert [one.id for one in again.generate([9, 3], WARM, 12)] == [
        one.id for one in session.generate([9, 3], WARM, 12)
    ]


def test_what_follows_the_last_token_is_saved_too(model: graphml.Model, tmp_path: Path) -> None:
    session = begun(model)
    session.eval([4, 5, 6])
    session.save(tmp_path / "one")
    again, steps = restored(model, tmp_path / "one"), model.executor.n_steps
    assert again.sample(WARM) == session.sample(WARM)
    assert model.executor.n_steps == steps


def test_only_cells_in_use_are_saved(llama: graphml.Model, tmp_path: Path) -> None:
    sizes = []
    for n_ctx in (64, 160):
        with llama.session(n_ctx=n_ctx) as session:
            session.eval(IDS[:40])
            session.save(tmp_path / "one")
            sizes.append((tmp_path / "one").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 64
    with safe_open(tmp_path / "one", "np") as file:
        names = state_names(llama.executor.programs.state_leaves(llama.executor.build(1, 1)))
        for name in names.cells:
            assert file.get_slice(f"cells/{name}").get_shape()[0] == 40


def test_an_empty_session_and_one_of_a_batch_are_saved(llama: graphml.Model, tmp_path: Path) -> None:
    llama.session(seed=3).save(tmp_path / "empty")
    again = restored(llama, tmp_path / "empty")
    assert (again.n_past, again.seed) == (0, 3)
    batch = llama.batch(3, n_ctx=96, seed=1)
    first, second, _ = batch.sessions
    first.eval(IDS[:50])
    expected = second.eval(IDS[20:60])
    second.save(tmp_path / "second")
    again = restored(llama, tmp_path / "second")
    np.testing.assert_array_equal(again.eval([8]), second.eval([8]))
    assert expected.shape == (llama.n_vocab,)


def test_a_generation_goes_on_after_it_was_saved(llama: graphml.Model, tmp_path: Path) -> None:
    whole = [one.id for one in llama.session(seed=5).generate(IDS[:9], WARM, 12)]
    session = llama.session(seed=5)
    found = []
    for one in session.generate(IDS[:9], WARM, 12):
        found.append(one.id)
        if len(found) == 5:
            session.save(tmp_path / "one")
    assert found == whole
    again = restored(llama, tmp_path / "one")
    assert [one.id for one in again.generate(params=WARM, max_tokens=7)] == whole[5:]


@pytest.mark.parametrize(
    ("name", "kv"), [("llama", "f32"), ("llama", "bf16"), ("wide", "q8_0"), ("wide", "q4_0")]
)
def test_every_cache_type_is_saved(folder: Path, tmp_path: Path, name: str, kv: str) -> None:
    with graphml.load(folder / f"{name}.gguf", threads=2, n_batch=16, kv=kv) as model:
        session = begun(model)
        session.save(tmp_path / "one")
        np.testing.assert_array_equal(restored(model, tmp_path / "one").eval([5]), session.eval([5]))


@pytest.mark.parametrize(
    ("name", "backend"), in_turn(KINDS[:3], ["reference", "opencl", "wgpu", "cpu,reference"])
)
def test_backends_restore_what_another_saved(folder: Path, tmp_path: Path, backend: str, name: str) -> None:
    path = folder / f"{name}.gguf"
    with graphml.load(path, threads=2, n_batch=16) as cpu, graphml.load(path, backend, n_batch=16) as other:
        session = begun(cpu)
        session.save(tmp_path / "one")
        there = restored(other, tmp_path / "one")
        there.save(tmp_path / "two")
        back = restored(cpu, tmp_path / "two")
        logits = session.eval([5])
        np.testing.assert_array_equal(back.eval([5]), logits)
        assert nmse(there.eval([5]), logits) < 1e-4
        assert [one.id for one in there.generate(params=SamplingParams(), max_tokens=3)]


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change a saved file's header object and arrays, and write hashes that fit."""
    with safe_open(path, "np") as file:
        said = json.loads(file.metadata()["graphml"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(said["about"], arrays)
    from graphml.weights.tensor_file import write_tensors

    write_tensors(path, said["about"], arrays)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "version": (lambda about, _: about.update(version=1), "wanted version 2 of a saved session, got 1"),
    "format": (lambda about, _: about.update(format="x"), "wanted a saved session, got 'x'"),
    "kv": (lambda about, _: about.update(kv="q8_0"), r"another cache type \(kv\).*is 'q8_0'.*is 'f16'"),
    "windows": (
        lambda about, _: about.update(windows="window_32"), "another swa_full: .* is 'window_32'.*is ''",
    ),
    "model": (lambda about, _: about.update(model="0"), "another model: its fingerprint is '0'"),
    "n_ctx": (lambda about, _: about.update(n_ctx=1 << 40), "n_ctx: wanted 1 to 160"),
    "n_ctx is text": (lambda about, _: about.update(n_ctx="9"), "n_ctx: wanted a whole number, got '9'"),
    "n_evaluated": (lambda about, _: about.update(n_evaluated=99), "99 tokens evaluated of 46"),
    "seed": (lambda about, _: about.update(seed=-1), "seed: wanted a whole number"),
    "random": (lambda about, _: about.update(random={"generator": 1}), "random: wanted the state"),
    "words": (lambda about, _: about["random"]["generator"]["state"].update(state=1 << 200), "out of range"),
    "peeked": (lambda about, _: about["random"].update(peeked=[2.0]), "out of range"),
    "params": (lambda about, _: about["params"].update(temperature=-1), "params: .*temperature"),
    "unknown param": (lambda about, _: about["params"].update(x=1), "params: .*x"),
    "ids": (lambda _, arrays: arrays["ids"].__setitem__(3, -1), "ids: wanted at most 128 ids from 0 to"),
    "more ids": (
        lambda _, arrays: arrays.update(ids=np.zeros(500, np.int32)), "ids: wanted at most 128 ids",
    ),
    "dtype": (lambda _, arrays: arrays.update(ids=np.zeros(46, np.int64)), r"'ids': wanted int32 \[any\]"),
    "source": (
        lambda _, arrays: arrays.update(source=np.ones(2, np.int32)), "2 read",
    ),
    "row": (lambda _, arrays: arrays.update(row=np.zeros(3, np.float32)), r"'row': wanted float32 \[268\]"),
    "cells": (
        lambda _, arrays: arrays.update({name: arrays[name][:-1] for name in arrays if "cells" in name}),
        r"wanted float16 \[45",
    ),
    "missing": (
        lambda _, arrays: [arrays.pop(name) for name in list(arrays) if name.startswith("cells")],
        "are missing",
    ),
    "unknown": (lambda _, arrays: arrays.update(x=np.zeros(1)), r"\['x'\] are unknown"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(HOSTILE))
def test_hostile_files_are_refused_with_the_reason(llama: graphml.Model, tmp_path: Path, what: str) -> None:
    change, text = HOSTILE[what]
    path = tmp_path / "one"
    begun(llama).save(path)
    rewritten(path, change)
    with pytest.raises(graphml.UsageError, match=text) as caught:
        llama.restore(path)
    assert str(path) in str(caught.value)


def test_damaged_and_truncated_files_are_refused(llama: graphml.Model, tmp_path: Path) -> None:
    path = tmp_path / "one"
    begun(llama).save(path)
    whole = path.read_bytes()
    step = max(1, len(whole) // 25)
    for size in (0, 3, 8, 9, *range(20, len(whole), step), len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(graphml.UsageError, match="no whole safetensors file"):
            llama.restore(path)
    for at in [*range(0, len(whole), step), len(whole) - 1]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        with pytest.raises(graphml.UsageError, match=str(path)):
            llama.restore(path)
    path.write_bytes(struct.pack("<Q", 1 << 62) + whole[8:])
    with pytest.raises(graphml.UsageError, match="a header of 4611686018427387904 bytes"):
        llama.restore(path)
    path.write_bytes(whole)
    assert restored(llama, path).n_past == 46


def test_files_of_others_are_no_sessions_and_are_not_replaced(llama: graphml.Model, tmp_path: Path) -> None:
    session = begun(llama)
    strange, text, pipe = tmp_path / "strange", tmp_path / "text", tmp_path / "pipe"
    save_file({"a": np.zeros(2, np.float32)}, strange)
    text.write_text("my notes\n")
    os.mkfifo(pipe)
    for path, reason in (
        (strange, "it is of something else"), (text, "no whole safetensors"), (pipe, "is not a plain file"),
        (tmp_path, "is not a plain file"), (tmp_path / "none", "no such file"),
    ):  # fmt: skip
        with pytest.raises(graphml.UsageError, match=reason):
            llama.restore(path)
    for path in (strange, text, pipe, tmp_path):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(graphml.UsageError, match="is there already and is no saved session"):
            session.save(path)
        assert not path.is_file() or path.read_bytes() == before
    for wrong, reason in (
        (tmp_path / "no" / "folder", "cannot be written: No such file"), ("\0", "cannot be written"),
        (7, "path: wanted a path"),
    ):  # fmt: skip
        with pytest.raises(graphml.UsageError, match=reason):
            session.save(wrong)  # type: ignore[arg-type]
    assert not list(tmp_path.glob(".graphml*"))


def test_another_model_or_cache_type_is_refused(folder: Path, llama: graphml.Model, tmp_path: Path) -> None:
    path = tmp_path / "one"
    begun(llama).save(path)
    with (
        graphml.load(folder / "other.gguf", threads=2) as other,
        pytest.raises(graphml.UsageError, match="was saved with another model: its fingerprint is"),
    ):
        other.restore(path)
    with (
        graphml.load(folder / "mamba-plain.gguf", threads=2) as other,
        pytest.raises(graphml.UsageError, match=r"another model: its architecture is 'llama'.*is 'mamba'"),
    ):
        other.restore(path)
    with (
        graphml.load(folder / "llama.gguf", threads=2, kv="f32") as other,
        pytest.raises(graphml.UsageError, match=r"another cache type \(kv\).*is 'f16'.*is 'f32'"),
    ):
        other.restore(path)
    with (
        graphml.load(folder / "llama.gguf", threads=2, quant="q8") as other,
        pytest.raises(graphml.UsageError, match="another model"),
    ):
        other.restore(path)


def test_one_changed_weight_is_another_model(folder: Path, llama: graphml.Model, tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    content = bytearray((folder / "llama.gguf").read_bytes())
    content[-1] ^= 1  # in the last tensor
    path.write_bytes(content)
    (folder / "copy.gguf").write_bytes((folder / "llama.gguf").read_bytes())
    with graphml.load(path, threads=2) as other, graphml.load(folder / "copy.gguf", threads=2) as same:
        assert other.executor.file.fingerprint != llama.executor.file.fingerprint
        assert same.executor.file.fingerprint == llama.executor.file.fingerprint


SAVES = """
import os, pathlib, sys, time, graphml, safetensors.numpy
def stop(*arguments, **named):
    print("ready", flush=True)
    time.sleep(600)
def half(arrays, path, said):
    save(arrays, path, said)
    whole = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(whole[: len(whole) // 2])
    stop()
save = safetensors.numpy.save_file
with graphml.load(sys.argv[1], threads=1, n_batch=16) as model:
    session = model.restore(sys.argv[2])
    session.rewind(20)
    session.eval([5, 6, 7])
    if sys.argv[3] == "half written":
        safetensors.numpy.save_file = half
    elif sys.argv[3] == "not on the disk":
        os.fsync = stop
    else:
        pathlib.Path.replace = stop
    session.save(sys.argv[2])
"""


@pytest.mark.parametrize("moment", ["half written", "not on the disk", "not named"])
def test_a_kill_in_the_middle_of_a_save_leaves_the_old_file(
    folder: Path, llama: graphml.Model, tmp_path: Path, moment: str
) -> None:
    path = tmp_path / "one"
    begun(llama).save(path)
    before = path.read_bytes()
    command = [sys.executable, "-c", SAVES, str(folder / "llama.gguf"), str(path), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert path.read_bytes() == before
    assert restored(llama, path).n_past == 46
