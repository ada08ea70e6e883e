"""Saved runs and repros: what is written, read back, and refused."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.lib import format as npy

from graphml.errors import UsageError
from graphml.inspect.bisect import repro
from graphml.inspect.bisect.bisect import bisect, check_alike
from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.observe import observe, restore, save
from graphml.runtime.programs.executor import Executor
from tests import golden
from tests.inspect import faults
from tests.inspect.bisected import IDS, NONE, first, opened, stories, without_products_of_gates


def test_a_saved_run(tmp_path: Path) -> None:
    with opened(stories(), **without_products_of_gates("swiglu")) as both:
        with faults.wrong_lowering("swiglu", faults.with_arguments(b_stride=0)):
            save(observe(both.a, IDS), tmp_path / "run.npz")
        again = restore(tmp_path / "run.npz", both.b.weights)
        assert again.ids == tuple(IDS)
        assert again.facts["backend"] == "cpu"
        one = first(bisect(again, None, Judge(both.b, NONE)))
        assert (one.kind, one.node.name) == ("kernel", "layers.0.swiglu")
        check_alike(again, both.b)
        with pytest.raises(UsageError, match="kv f16; got kv f32"):
            check_alike(replace(again, facts={"kv": "f16"}), replace_kv(both.b))


def replace_kv(executor: Executor) -> Any:
    return mock.Mock(cache_dtype="f32", executor=executor)


def test_a_saved_run_of_another_model(tmp_path: Path) -> None:
    with opened(stories()) as both:
        save(observe(both.a, IDS), tmp_path / "run.npz")
    with opened(golden.build(golden.read("llama-dense"), tmp_path / "m.gguf")) as both:
        again = restore(tmp_path / "run.npz", both.b.weights)
        with pytest.raises(UsageError, match=r"stories.gguf, whose token_embd.weight is f32\[512, 64\]"):
            check_alike(again, both.b)


def test_arrays_that_claim_to_be_larger_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", header.getvalue())
    with pytest.raises(UsageError, match=r"header\.npy is said to be"):
        restore(path, {})


def test_files_that_are_no_saved_runs(tmp_path: Path) -> None:
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04 nothing")
    np.savez(tmp_path / "other.npz", header=np.frombuffer(b'{"format": "x"}', np.uint8))
    for name in ("no.npz", "other.npz", "missing.npz"):
        with pytest.raises(UsageError, match=name):
            restore(tmp_path / name, {})
        with pytest.raises(UsageError, match=name):
            repro.load(tmp_path / name)


def test_a_repro_runs_alone(tmp_path: Path) -> None:
    with faults.wrong_lowering("linear", faults.with_arguments(n=32)), opened(stories()) as both:
        one = first(both.bisect())
        assert one.node.op.name == "linear"
        case = repro.ReproCase(one.graph, one.other, one.arrays)
        script, arrays = repro.write(case, ("cpu", "reference"), one.limit, "a title", tmp_path)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "they agree" in done.stdout
    assert arrays.stat().st_size < 20_000
    assert stories().parent.name not in script.read_text()
