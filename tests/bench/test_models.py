"""Models made for benchmarks: llama.cpp's mixtures, weights of the right size, whole files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import graphml_quant
import numpy as np
import pytest

import graphml
from graphml import settings
from graphml.bench import made_models as model_file
from graphml.bench.describe import short_count
from graphml.bench.made_models import bench_model
from graphml.bench.shapes import SHAPES, Shape, tensors
from graphml.errors import ArchitectureError, UsageError
from graphml.weights import random_blocks as blocks
from graphml.weights import type_mixes as mixes
from tests.looped import looped

# What llama_model_quantize of llama.cpp (llama-cpp-python 0.3.36, dry run) says of every file type it makes
# of these models: runs of formats over the layers, part by part; parts that stay in f32 are left out.
MIXES = json.loads((Path(__file__).parents[1] / "data" / "bench" / "mixes.json").read_text(encoding="utf-8"))
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
WIDE = Shape("v", "llama", 64, 256, 17, 4, 1, 256)
VARIANTS = {
    "wide": WIDE,
    "narrow": replace(WIDE, n_head_kv=2),
    "tied": replace(WIDE, tied=True),
    "odd": replace(WIDE, n_embd=288, n_head=9, n_head_kv=3, tied=True, n_ff=288),
    "experts8": replace(WIDE, n_expert=8, n_expert_used=2),
    "experts4": replace(WIDE, n_head_kv=2, n_expert=4, n_expert_used=2),
}
SMALL = Shape("small", "llama", 128, 64, 2, 4, 2, 96, n_ctx=128)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "cache_folder", lambda: tmp_path)
    return tmp_path / "bench"


def spelled(formats: list[str]) -> str:
    runs: list[tuple[str, int]] = []
    for one in formats:
        count = runs.pop()[1] if runs and runs[-1][0] == one else 0
        runs.append((one, count + 1))
    return " ".join(one if len(formats) == 1 else f"{count}*{one}" for one, count in runs)


@pytest.mark.parametrize("variant", MIXES)
def test_the_mixtures_are_those_of_llama_cpp(variant: str) -> None:
    shape = VARIANTS[variant]
    facts = mixes.ModelFacts(shape.n_layer, shape.n_head // shape.n_head_kv, shape.n_expert, shape.tied)
    assert len(MIXES[variant]) > 25
    for name, wanted in MIXES[variant].items():
        kind, parts = mixes.file_type(name), dict[str, list[str]]()
        for tensor, size in tensors(shape).items():
            part = tensor.split(".", 2)[2] if tensor.startswith("blk.") else tensor
            parts.setdefault(part.removesuffix(".weight"), []).append(
                mixes.tensor_format(kind, tensor, size, facts)
            )
        found = {part: spelled(formats) for part, formats in parts.items() if set(formats) != {"f32"}}
        assert found == wanted, name


@looped("name", blocks.formats())
def test_random_blocks_have_the_deviation_and_are_legal(name: str) -> None:
    kind = graphml_quant.by_name(name)
    made = np.concatenate(list(blocks.random_blocks(kind, 4000, 0.02, 3)))
    values = kind.decode(made).astype(np.float64)
    assert made.shape == (4000, kind.block_bytes)
    assert np.isfinite(values).all()
    assert 0.6 * 0.02 < values.std() < 1.5 * 0.02
    assert abs(values.mean()) < 0.0012
    assert np.array_equal(made, np.concatenate(list(blocks.random_blocks(kind, 4000, 0.02, 3))))
    assert not np.array_equal(made, np.concatenate(list(blocks.random_blocks(kind, 4000, 0.02, 4))))


@pytest.mark.parametrize(("shape", "kind"), [("tiny", "Q4_K_M"), ("tiny-moe", "Q8_0")])
def test_a_made_model_runs_and_the_backends_agree(shape: str | Shape, kind: str, folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = bench_model(shape, kind, lambda *report: told.append(report))
    assert told
    assert told[-1][1] == told[-1][2]
    written = path.stat().st_mtime_ns
    assert bench_model(shape, kind) == path
    assert path.stat().st_mtime_ns == written
    ids = [3, 14, 15, 92]
    logits = []
    for backend in ("cpu", "reference"):
        with graphml.load(path, backend, threads=1) as model, model.session(32, seed=0) as session:
            # One by one, so that only the kernels of single tokens are compiled.
            logits.append(np.stack([session.eval([token]) for token in ids]))
    assert np.isfinite(logits[0]).all()
    assert 0.3 < logits[0].std() < 3
    difference = ((logits[0] - logits[1]) ** 2).sum() / (logits[1] ** 2).sum()
    assert difference < 2e-3  # the cpu quantises activations


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.n_layer > 2])
def test_the_architectures_take_what_the_shapes_have(name: str, folder: Path) -> None:
    """Each shape made small: every tensor is used, every key that is asked for is there."""
    shape = SHAPES[name]
    heads = {"n_head": 4, "n_head_kv": 2 if shape.n_head_kv < shape.n_head else 4}
    rotated = {"n_rot": 8} if shape.n_rot else {}
    small = replace(shape, n_vocab=96, n_embd=64, n_layer=2, n_ff=96, n_ctx=64, **heads, **rotated)
    small = replace(small, head_dim=32 if shape.head_dim else 0)
    with (
        graphml.load(bench_model(small, "Q8_0"), "reference") as model,
        model.session(16, seed=0) as session,
    ):
        logits = session.eval([3, 14, 15, 92], all_logits=True)
        assert model.executor.unused_tensors == []
        assert (model.arch, model.n_vocab, model.n_ctx) == (shape.arch, 96, 64)
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3


def test_a_model_appears_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_model(SMALL, "Q8_0", interrupted)
    assert list(folder.iterdir()) == []

    def fails(*_: object) -> None:
        raise TimeoutError("the caller's own")

    with pytest.raises(TimeoutError, match="the caller's own"):
        bench_model(SMALL, "Q8_0", fails)
    assert list(folder.iterdir()) == []
    folder.rmdir()
    folder.write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        bench_model(SMALL, "Q8_0")


def test_what_a_killed_process_left_is_swept_and_what_another_writes_is_not(folder: Path) -> None:
    code = """
import os, sys
from graphml.bench.made_models import bench_model
from tests.bench.test_models import SMALL
dies = sys.argv[2] == "dies"
bench_model(SMALL, sys.argv[1], lambda *_: os._exit(7) if dies else (print(flush=True), input()))
"""
    environment = {**os.environ, "GRAPHML_CACHE": str(folder.parent)}

    def start(kind: str, fate: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, kind, fate]
        pipes = subprocess.PIPE
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdin=pipes, stdout=pipes)

    with start("Q8_0", "dies") as dead:
        assert dead.wait() == 7
    (left,) = folder.iterdir()
    with start("Q4_0", "writes") as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (writing,) = set(folder.iterdir()) - {left}
        path = bench_model(SMALL, "F16")
        assert set(folder.iterdir()) == {path, writing}
        writer.kill()
    assert bench_model(SMALL, "F16") == path
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["truncated", "longer", "another header", "empty"])
def test_a_file_of_another_size_or_header_is_made_again(damage: str, folder: Path) -> None:
    path = bench_model(SMALL, "Q8_0")
    whole = path.read_bytes()
    other = {
        "truncated": whole[:-4096],
        "longer": whole + bytes(32),
        "another header": whole.replace(b"blk.0.attn_q", b"blk.7.attn_q", 1),
        "empty": b"",
    }[damage]
    path.write_bytes(other)
    assert bench_model(SMALL, "Q8_0") == path
    assert path.read_bytes() == whole


def test_unknown_names_are_told(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--shape: wanted one of .*tinyllama.*; got 'huge'"):
        bench_model("huge")
    with pytest.raises(UsageError, match=r"--type: wanted one of .*Q4_K_M.*; got 'Q9_Z'"):
        bench_model(SMALL, "Q9_Z")
    path = bench_model(replace(SMALL, arch="marvin"), "Q8_0")
    with pytest.raises(ArchitectureError, match="marvin"):
        graphml.load(path)


def test_the_shapes_have_the_sizes_of_their_namesakes() -> None:
    """Parameters of the published models; the small mixtures of experts are our own."""
    counts = {
        name: sum(int(np.prod(size)) for size in tensors(shape).values()) for name, shape in SHAPES.items()
    }
    assert counts["tinyllama-1.1b"] == 1_100_048_384
    assert counts["smollm2-135m"] == 134_515_008
    assert counts["phi-2"] == 2_779_683_840
    assert counts["llama-3.2-3b"] - 64 == 3_212_749_824
    assert counts["qwen3-0.6b"] == 596_049_920
    assert model_file.ALIGNMENT == 32


def test_the_shapes_are_listed() -> None:
    rows = re.findall(
        r"^\| `([\w.-]+)` \| `(\w+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    wanted = [
        (name, shape.arch, short_count(sum(int(np.prod(size)) for size in tensors(shape).values())))
        for name, shape in SHAPES.items()
    ]
    assert sorted(rows) == sorted(wanted)
