"""Copies between devices are compared like computed values: a wrong one is named, no kernel behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from graphml_gpu.places import Inputs

from graphml.inspect.bisect.bisect import bisect
from graphml.inspect.bisect.findings import as_json, as_text
from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.compare import compare, wrong_copies
from graphml.inspect.compare.copies import Copied
from graphml.inspect.compare.observe import observe, restore, save
from graphml.inspect.dumps.document import source_of
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.gpu.test_gpu_model import DEVICES
from tests.inspect import faults
from tests.inspect.bisected import IDS, NONE, Opened, first, opened, stories
from tests.inspect.test_bisect import quantised
from tests.sample_models import MODELS, write_model

SPLIT = "cpu:layers.0,reference:layers.1"
RESIDUAL = Copied("layers.0.ffn_residual", "cpu", "reference")


@contextmanager
def placed(path: Path, place: str = SPLIT, backends: str = "cpu,reference") -> Iterator[Opened]:
    """The model spread by these rules, held against the reference."""
    a = open_executor(path, LoadOptions(backends, 2, n_batch=32, place=place))
    b = open_executor(path, LoadOptions("reference", 2, n_batch=32))
    try:
        yield Opened(a, b)
    finally:
        a.close()
        b.close()


# Rules; the value whose copy is wrong, and between which backends.
COPIES = {
    SPLIT: RESIDUAL,
    "reference:layers.0,cpu:layers.1": Copied("layers.0.ffn_residual", "reference", "cpu"),
    "reference:attention": Copied("layers.0.reshape_3", "reference", "cpu"),
    "reference:layers.0.attention": Copied("embedding", "cpu", "cpu"),  # between two parts of a device
    "reference:layers.*.silu": Copied("layers.0.gate", "cpu", "reference"),
}


@pytest.mark.parametrize("place", COPIES)
def test_a_wrong_copy_is_named(place: str) -> None:
    wanted = COPIES[place]
    with faults.wrong_copy(wanted.value), placed(stories(), place) as both:
        run, other = observe(both.a, IDS), observe(both.b, IDS, NONE)
        found = bisect(run, other, Judge(both.b, NONE, own=both.a.device))
    rows = compare(run, other)
    one = first(found)
    assert (one.kind, one.op, one.step, one.copied) == ("copy", "copy", "prefill", wanted)
    assert {other.copied for other in found.findings} == {wanted}
    assert (one.token, one.position) == (6, 6)
    line = source_of(run.steps[0].plain.node(wanted.value).source)
    assert line is not None
    text = as_text(found, run, other).splitlines()
    told = f"{wanted.value}, copied from {wanted.source} to {wanted.target},"
    assert text[2].startswith(f"first wrong: {told} in prefill")
    assert text[3] == f"the copy is wrong: {wanted.target} has another value than {wanted.source} computed"
    assert f"built at {line}" in text
    said = as_json(found)["findings"][0]
    assert (said["kind"], said["source"], said["backend"]) == ("copy", line, wanted.target)
    assert said["copied"] == {"value": wanted.value, "source": wanted.source, "target": wanted.target}
    wrong = [row for row in rows if row.copied is not None and row.difference.nmse]
    assert {(row.step, row.copied) for row in wrong} == {("prefill", wanted), ("decode", wanted)}
    assert wrong_copies(rows).splitlines()[0] == (
        f"wrong copy in prefill: {wanted.value} from {wanted.source} to {wanted.target}, built at {line}"
    )


@pytest.mark.parametrize("place", COPIES)
def test_right_copies_are_right(place: str) -> None:
    with placed(stories(), place) as both:
        found = both.bisect()
        rows = compare(observe(both.a, IDS), observe(both.b, IDS, NONE))
    assert not found.findings
    copies = {one.copied for one in found.readings if one.copied is not None}
    assert COPIES[place] in copies
    assert found.coverage.copies == sum(row.step == "decode" and row.copied is not None for row in rows)
    assert any(line.startswith("copies between devices, ") for line in found.coverage.looked_at)
    assert not wrong_copies(rows)
    assert {one.node.name for one in found.readings if one.meaning is None} == {
        one.node.name for one in found.readings if one.copied is not None
    }


def test_a_model_with_recurrent_states(tmp_path: Path) -> None:
    path, ids = write_model(tmp_path / "m.gguf", *MODELS["mamba-plain"]), list(range(1, 9))
    with placed(path) as both:
        assert not both.bisect(ids=ids).findings
    with faults.wrong_copy("layers.0.residual"), placed(path) as both:
        assert {one.copied for one in both.bisect(ids=ids).findings} == {
            Copied("layers.0.residual", "cpu", "reference")
        }


def test_quantised_weights(tmp_path: Path) -> None:
    path, ids = quantised("llama-dense", tmp_path, "q8_0"), golden.read("llama-dense").tokens[:8]
    with placed(path) as both:
        assert not both.bisect(ids=ids).findings
    with faults.wrong_copy("layers.0.ffn_residual"), placed(path) as both:
        assert {one.copied for one in both.bisect(ids=ids).findings} == {RESIDUAL}


def test_a_saved_run_has_its_copies(tmp_path: Path) -> None:
    with faults.wrong_copy(RESIDUAL.value), placed(stories()) as both:
        save(observe(both.a, IDS), tmp_path / "run.npz")
    with opened(stories()) as both:
        again = restore(tmp_path / "run.npz", both.b.weights)
        one = first(bisect(again, None, Judge(both.b, NONE)))
    assert (one.kind, one.copied, one.backend) == ("copy", RESIDUAL, "reference")
    assert again.facts["place"] == SPLIT


def test_a_wrong_kernel_is_that_of_its_device() -> None:
    """It is looked inside on the second device, whose parts are wrong too."""
    wrong = faults.with_arguments(eps=1e-3)
    with (
        faults.wrong_lowering("rms_norm_mul", wrong), faults.wrong_lowering("rms_norm", wrong),
        placed(stories(), "reference:layers.0,cpu:layers.1", "reference,cpu") as both,
    ):  # fmt: skip
        found = both.bisect()
        text = as_text(found, observe(both.a, IDS), observe(both.b, IDS, NONE))
    one = first(found)
    assert (one.kind, one.node.name, one.backend) == ("kernel", "layers.1.attn_norm", "cpu")
    assert "the kernel is wrong: cpu computes another value" in text
    assert one.inside is not None
    assert [(part.node.op.name, part.wrong) for part in one.inside.parts] == [
        ("rms_norm", True), ("mul", False),
    ]  # fmt: skip


@pytest.mark.skipif(not DEVICES, reason="neither wgpu nor OpenCL finds a device")
def test_the_memory_of_a_gpu_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives wrong there is seen, though it is right in main memory."""
    right, backend = Inputs.upload, DEVICES[-1]

    def lost(self: Inputs) -> None:
        kept = {name: array.copy() for name, array in self.arrays.items()}
        for array in (self.arrays[name] for name in kept if name == RESIDUAL.value):
            array[0] = 0
        right(self)
        for name, array in kept.items():
            self.arrays[name][...] = array

    monkeypatch.setattr(Inputs, "upload", lost)
    with placed(stories(), f"cpu:layers.0,{backend}:layers.1", f"cpu,{backend}") as both:
        run = observe(both.a, IDS[:1], in_use=False)
        rows = compare(run, observe(both.b, IDS[:1], NONE, in_use=False))
    wrong = {row.copied for row in rows if row.copied is not None and row.difference.nmse}
    assert wrong == {Copied(RESIDUAL.value, "cpu", backend)}
