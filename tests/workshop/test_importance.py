"""Importance of weights' columns: collected, kept in files, added up, gone on with."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

import graphml
from graphml.authoring.gguf_file import write_tiny
from graphml.errors import UsageError
from graphml.loading.discovery import architecture
from graphml.weights.tensor import Tensor
from graphml.workshop.importance import Importance, importance
from graphml.workshop.importance_file import read_importance, write_importance
from tests import tiny_model
from tests.adapter_files import write_vectors
from tests.cli.test_commands import graphml_command

TEXT = "hello world, " * 30
CPU = ("--backend", "reference")


def _seen(seed: int = 0) -> Importance:
    numbers = np.random.default_rng(seed)
    sums = {"blk.0.a.weight": numbers.random((1, 8)), "blk.0.exps.weight": numbers.random((3, 4))}
    counts = {"blk.0.a.weight": np.array([64]), "blk.0.exps.weight": np.array([40, 0, 88])}
    return Importance(sums, counts, ("text.txt",), 2, 32)


def test_it_is_the_squares_of_what_products_read(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "reference", kv="f32") as model:
        ids = model.encode(TEXT)
        *_, seen = importance(model, ids, 16, chunks=2)
        assert (seen.n_chunks, seen.chunk_size) == (2, 16)
        assert set(seen.sums) == {
            f"blk.{layer}.{name}.weight"
            for layer in range(tiny_model.LAYERS)
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        }
        wanted = sum(
            (model.capture(ids[begin : begin + 16], "layers.1.ffn_norm")["layers.1.ffn_norm"] ** 2).sum(
                axis=0
            )
            for begin in (0, 16)
        )
        assert seen.sums["blk.1.ffn_up.weight"][0] == pytest.approx(wanted, rel=1e-4)
        assert seen.counts["blk.1.ffn_up.weight"].tolist() == [32]
        assert seen.of("blk.1.ffn_gate.weight") == pytest.approx(np.asarray(wanted)[None] / 32, rel=1e-4)
        assert seen.of("blk.9.ffn_up.weight") is None
        *_, begun = importance(model, ids, 16, chunks=2, bos=tiny_model.BEGIN)
        assert (begun.sums["blk.0.attn_q.weight"] != seen.sums["blk.0.attn_q.weight"]).any()
        *_, whole = importance(model, ids, 16, chunks=1, output=True)
        assert {name for name in whole.sums if not name.startswith("blk.")} <= {"output.weight"}
        with pytest.raises(UsageError, match="text: wanted at least 500 tokens, one chunk; got"):
            next(importance(model, ids, 500))


def test_experts_count_their_own_tokens(tmp_path: Path) -> None:
    path = tmp_path / "moe.gguf"
    samples = architecture("qwen3moe").sample
    assert samples is not None
    write_tiny(path, "qwen3moe", samples("qwen3moe")[0])
    with graphml.load(path, "reference", kv="f32") as model:
        ids = np.random.default_rng(1).integers(0, model.n_vocab, 48).tolist()
        *_, seen = importance(model, ids, 16)
        name = next(name for name in seen.sums if "ffn_down_exps" in name)
        counts = seen.counts[name]
        n_used = int(model.metadata["qwen3moe.expert_used_count"])
        assert counts.sum() == 48 * n_used
        assert len(counts) == model.metadata["qwen3moe.expert_count"]
        assert (counts > 0).sum() > 1
        graph = model.executor.build(1, 1)
        product = next(
            node for node in graph.nodes
            if node.op.name == "mul_mat_id" and node.inputs[0].name == name
        )  # fmt: skip
        wanted = np.zeros_like(seen.sums[name])
        for begin in range(0, 48, 16):
            values = model.capture(ids[begin : begin + 16], product.inputs[1].name, product.inputs[2].name)
            x, chosen = values[product.inputs[1].name], values[product.inputs[2].name]
            for token in range(16):
                for place in range(n_used):
                    wanted[chosen[token, place]] += x[token, place] ** 2
        assert seen.sums[name] == pytest.approx(wanted, rel=1e-3)


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    seen = _seen()
    write_importance(tmp_path / "seen.gguf", seen)
    again = read_importance(tmp_path / "seen.gguf")
    assert (again.n_chunks, again.chunk_size, again.datasets) == (2, 32, ("text.txt",))
    for name, sums in seen.sums.items():
        assert again.sums[name] == pytest.approx(sums, rel=1e-6)
        assert again.counts[name].tolist() == seen.counts[name].tolist()
    assert again.of("blk.0.exps.weight")[1].tolist() == [1.0] * 4  # type: ignore[index]
    reader = gguf.GGUFReader(tmp_path / "seen.gguf")
    assert [str(tensor.name) for tensor in reader.tensors] == [
        f"{name}{end}" for name in sorted(seen.sums) for end in (".in_sum2", ".counts")
    ]
    assert reader.tensors[2].shape.tolist() == [4, 3]
    assert reader.tensors[3].shape.tolist() == [1, 3]
    assert [key for key in reader.fields if not key.startswith("GGUF.")] == [
        "general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size",
    ]  # fmt: skip


def test_the_older_form(tmp_path: Path) -> None:
    seen = Importance(
        {"blk.0.a.weight": np.arange(1.0, 5.0)[None]}, {"blk.0.a.weight": np.array([600])}, ("t",), 3
    )
    write_importance(tmp_path / "seen.dat", seen)
    means = np.arange(1.0, 5.0) / 600
    name = b"blk.0.a.weight"
    numbers = (means * 2).astype("<f4").tobytes()
    head = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 2, 4)
    assert (tmp_path / "seen.dat").read_bytes() == head + numbers + struct.pack("<ii", 3, 1) + b"t"
    again = read_importance(tmp_path / "seen.dat")
    assert again.of("blk.0.a.weight") == pytest.approx(means[None], rel=1e-6)
    assert (again.n_chunks, again.datasets) == (3, ("t",))


@pytest.mark.parametrize("ending", [".gguf", ".dat"])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"seen{ending}"
    write_importance(path, _seen())
    data = path.read_bytes()
    for size in range(0, len(data) - 32, 7):  # behind it may be what fills up the last tensor
        path.write_bytes(data[:size])
        with pytest.raises(UsageError, match=f"seen{ending}: "):
            read_importance(path)


def test_what_is_no_importance_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seen.gguf"
    bad = _seen()
    bad.sums["blk.0.a.weight"][0, 2] = -1
    write_importance(path, bad)
    with pytest.raises(UsageError, match=r"blk\.0\.a\.weight\.in_sum2: wanted finite numbers from 0 on"):
        read_importance(path)
    with pytest.raises(UsageError, match=r"key general\.type: wanted 'imatrix'"):
        read_importance(tiny_model.write(tmp_path / "model.gguf"))
    with pytest.raises(UsageError, match=r"nothing\.gguf: wanted a file of importance; No such file"):
        read_importance(tmp_path / "nothing.gguf")
    for other in (tmp_path, Path("/dev/zero"), tmp_path / "pipe"):
        if other.name == "pipe":
            os.mkfifo(other)  # opening it waits for a writer
        if other.exists():
            with pytest.raises(
                UsageError, match=rf"{other}: wanted a file of importance; it is .*no plain file"
            ):
                read_importance(other)


def test_a_model_is_refused_before_its_weights_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "numpy", lambda _: pytest.fail("was decoded"))
    with pytest.raises(UsageError, match=r"key general\.type: wanted 'imatrix'"):
        read_importance(tiny_model.write(tmp_path / "model.gguf"))


def test_the_command_collects_adds_up_and_goes_on(tmp_path: Path) -> None:
    model, text = tiny_model.write(tmp_path / "tiny.gguf"), tmp_path / "text.txt"
    text.write_text(TEXT)
    common = ["imatrix", model, *CPU, "-f", text, "-c", 16]
    graphml_command(*common, "-o", tmp_path / "all.gguf", "--chunks", 4)
    whole = read_importance(tmp_path / "all.gguf")
    assert (whole.n_chunks, whole.chunk_size, whole.datasets) == (4, 16, (str(text),))
    assert "--force overwrites it" in graphml_command(*common, "-o", tmp_path / "all.gguf", code=2).stderr

    graphml_command("imatrix", *["--in-file", tmp_path / "all.gguf"] * 2, "-o", tmp_path / "two.dat")
    twice = read_importance(tmp_path / "two.dat")
    assert twice.n_chunks == 8
    graphml_command("imatrix", "--in-file", tmp_path / "all.gguf", "-o", tmp_path / "again.gguf")
    assert read_importance(tmp_path / "again.gguf").chunk_size == 16
    name = "blk.0.attn_q.weight"
    assert twice.of(name) == pytest.approx(whole.of(name), rel=1e-5)
    failed = graphml_command(
        "imatrix", model, "--in-file", tmp_path / "all.gguf", "-o", tmp_path / "x.gguf", code=2
    )
    assert "--file: wanted a text for the model" in failed.stderr
    short = graphml_command("imatrix", model, *CPU, "-f", text, "-c", 5000, "-o", tmp_path / "x.gguf", code=2)
    assert f"graphml: --file {text}: wanted at least 5000 tokens, one chunk; got" in short.stderr


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text, output = (
        tiny_model.write(tmp_path / "tiny.gguf"),
        tmp_path / "text.txt",
        tmp_path / "seen.gguf",
    )
    text.write_text(TEXT)
    common = ["imatrix", model, *CPU, "-f", text, "-c", 16, "-o", output, "--chunks", 5, "--save-every", 2]
    from graphml.cli import imatrix as command

    def stopping(*arguments: object) -> object:
        for seen in importance(*arguments):  # type: ignore[arg-type]
            yield seen
            if seen.n_chunks == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(command, "importance", stopping)
        graphml_command(*common, code=130)
    assert not output.exists()
    begun = output.with_name(f"{output.name}.begun.gguf")
    left = begun.read_bytes()
    vector = tmp_path / "vector.gguf"
    write_vectors(vector, {1: np.full(tiny_model.WIDTH, 9, np.float32)})
    for other in (["--control-vector", vector], ["--kv", "f32"]):  # what another model has seen is not added
        assert "goes on" not in graphml_command(*common, *other).stderr
        output.unlink()
        begun.write_bytes(left)
    vector.unlink()
    done = graphml_command(*common)
    assert "goes on behind 2 chunks" in done.stderr
    graphml_command(*common[:-6], "-o", tmp_path / "whole.gguf", "--chunks", 5)
    whole, resumed = read_importance(tmp_path / "whole.gguf"), read_importance(output)
    for name, sums in whole.sums.items():
        assert resumed.sums[name] == pytest.approx(sums, rel=1e-6)
        assert (resumed.counts[name] == whole.counts[name]).all()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "seen.gguf", "text.txt", "tiny.gguf", "whole.gguf",
    ]  # fmt: skip


def test_what_another_model_has_seen_is_not_added(tmp_path: Path) -> None:
    model, text = tiny_model.write(tmp_path / "tiny.gguf"), tmp_path / "text.txt"
    text.write_text(TEXT)
    common = ["imatrix", model, *CPU, "-f", text, "-c", 16, "-o", tmp_path / "seen.gguf", "--chunks", 1]
    for name, columns in (("blk.7.ffn_up.weight", 32), ("blk.0.ffn_up.weight", 7)):
        other = Importance({name: np.ones((1, columns))}, {name: np.array([1])}, (), 1)
        write_importance(tmp_path / "other.gguf", other)
        failed = graphml_command(*common, "--in-file", tmp_path / "other.gguf", code=2).stderr
        assert f"other.gguf: {name}: has sums [1, {columns}], the model " in failed
        assert "it is of another model" in failed
    assert not (tmp_path / "seen.gguf").exists()
    for read in (model, text):
        before = read.read_bytes()
        output = ["-o", tmp_path / "text.gguf", "--force"] if read == text else ["-o", model, "--force"]
        if read == text:
            (tmp_path / "text.gguf").hardlink_to(text)
        failed = graphml_command("imatrix", model, *CPU, "-f", text, "-c", 16, *output, code=2).stderr
        assert "is read by this command" in failed
        assert read.read_bytes() == before


def test_a_matrix_that_read_zeros_alone_has_equal_columns() -> None:
    """By weights of 0 a quantiser would make zeros of it."""
    seen = _seen()
    seen.sums["blk.0.a.weight"][:] = 0
    seen.sums["blk.0.exps.weight"][2] = 0
    means = seen.of("blk.0.exps.weight")
    assert means is not None
    assert seen.of("blk.0.a.weight") == pytest.approx(np.ones((1, 8)))
    assert means[1:] == pytest.approx(np.ones((2, 4)))
    assert means[0] == pytest.approx(seen.sums["blk.0.exps.weight"][0] / 40)
