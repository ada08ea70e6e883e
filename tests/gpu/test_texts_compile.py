"""Every kernel's text for features that no device here offers, read by compilers that know these features.

clang is what drivers of OpenCL are made of; wgpu's own compiler checks a text before a driver sees it, and
so does Tint, Chromium's, which refuses what wgpu's takes: barriers that it cannot see to be reached by all.
Nothing is run: what the texts mean is for the emulator and for devices.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from graphml_gpu.driver import Bound
from graphml_gpu.language import (
    PORTABLE,
    Features,
    Read,
    Specialised,
    Update,
    f32,
    f32x4,
    global_id,
    kernel,
    private_array,
)
from graphml_gpu.language.intrinsics import OPENCL_PREAMBLE
from graphml_gpu.language.opencl import declared
from graphml_opencl.programs import standard
from graphml_wgpu import pipelines

from tests.gpu import clang as compiler
from tests.gpu.cover import GRAPHICS, SUBGROUPS, kernels, of_the_language, written
from tests.gpu.dawn import complaints
from tests.gpu.language.devices import open_driver
from tests.gpu.language.examples import EVERYTHING, counts_up

EXTENSIONS = {
    "subgroups": ("cl_khr_subgroups", "cl_khr_subgroup_shuffle"),
    "f16": ("cl_khr_fp16",),
    "dot4": ("cl_khr_integer_dot_product", "__opencl_c_integer_dot_product_input_4x8bit_packed"),
}
"""What a device has that offers a feature; it has no other."""
FACTS = {"no feature": GRAPHICS, **{f"subgroups {name}": facts for name, facts in SUBGROUPS.items()}}
ALONE = {
    "no feature": PORTABLE,
    "subgroups": replace(EVERYTHING, f16=False, dot4=False),
    "f16": replace(PORTABLE, f16=True),
    "dot4": replace(PORTABLE, dot4=True),
    "everything": EVERYTHING,
    "no negations": replace(EVERYTHING, keeps_negated=False),
}
OF_THE_ENGINE = {"positions", "sequences", "lengths", "table", "block_table", "settings"}
"""What kernels are given by the engine: inputs of the graph, which nothing writes in any model."""


@cache
def clang() -> Path:
    """The newest clang; without one that is new enough the test is skipped, but where CI runs it fails."""
    found, missing = compiler.newest(os.environ.get("PATH", ""))
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    assert found is not None
    return found


def joined(some: Sequence[Specialised], folder: Path) -> Path:
    """A file of all the texts: what one declares for its whole file has its number behind the name."""
    whole = []
    for i, one in enumerate(some):
        path = folder / f"{i}.{one.name}.cl"
        text = one.opencl()
        path.write_text(text)
        names = (one.name, *declared(text))
        whole += [f"#define {name} {name}_{i}" for name in names]
        whole += [f'#include "{path.name}"', *(f"#undef {name}" for name in names)]
    together = folder / "together.cl"
    together.write_text("\n".join(whole) + "\n")
    return together


def read_by_clang(some: Sequence[Specialised], features: Features, folder: Path) -> str:
    """What clang says of the texts, given the driver's options and the extensions that the features mean."""
    offered = [name for feature, names in EXTENSIONS.items() if getattr(features, feature) for name in names]
    extensions = ",".join(["-all", *(f"+{name}" for name in offered)])
    options = ["-x", "cl", standard(features), "-target", "spir64", "-Xclang", f"-cl-ext={extensions}"]
    command = [str(clang()), *options, "-fsyntax-only", "-w", "-ferror-limit=0", str(joined(some, folder))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bool(run.returncode) == bool(run.stderr)
    return run.stderr


@kernel
def changes_signs(x: Read[f32], out: Update[f32x4], factor: f32) -> None:
    """Every way to write a negation."""
    i = global_id(0)
    value, held = x[i], private_array(f32, 1)
    held[0] = value * 3.0
    held[0] = held[0] * -1.0
    value = value * -1.0
    out[i] = -out[i] - f32x4(-value, -1.0 * held[0], value / -1.0, factor - value * held[0])


def test_every_kernel_is_looked_at() -> None:
    with_subgroups = {one.name for one in kernels(SUBGROUPS["of 32"])}
    assert written() - {one.name for one in kernels(GRAPHICS)} == {
        "attention_teams",
        "attention_registers",
        "lanes",
    }
    assert with_subgroups >= {"mat_vec", "attention", "attention_teams", "attention_registers", "norm"}
    assert {one.name for one in kernels(SUBGROUPS["of 8 to 32"])} == with_subgroups
    assert {one.name for one in kernels(SUBGROUPS["of 64"])} == with_subgroups - {"attention"}
    assert {one.name for one in kernels(SUBGROUPS["of any size"])} >= {"norm", "softmax", "top_k", "lanes"}
    assert len(kernels(GRAPHICS)) > 200
    assert len(kernels(SUBGROUPS["of 32"])) > 100


@pytest.mark.parametrize("name", FACTS)
def test_clang_takes_every_kernel(name: str, tmp_path: Path) -> None:
    assert read_by_clang(kernels(FACTS[name]), FACTS[name].features(), tmp_path) == ""


@pytest.mark.parametrize("name", ALONE)
def test_clang_takes_the_whole_language(name: str, tmp_path: Path) -> None:
    assert read_by_clang(of_the_language(ALONE[name]), ALONE[name], tmp_path) == ""


@pytest.mark.parametrize("name", ALONE)
def test_own_functions_are_in_the_text_where_nothing_is_inlined(name: str, tmp_path: Path) -> None:
    """A driver may compile small kernels without optimisation, and then links calls instead."""
    some = of_the_language(ALONE[name])
    options = ["-x", "cl", standard(ALONE[name]), "-target", "spir64", "-w", "-O0", "-S", "-emit-llvm"]
    command = [str(clang()), *options, str(joined(some, tmp_path)), "-o", "-"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for i, one in enumerate(some):
        assert re.search(rf"^define .*@{one.name}_{i}\(", made, re.MULTILINE), one.name
    own = "|".join(OPENCL_PREAMBLE)
    assert re.findall(rf"^declare .*@((?:{own})(?:_\d+)?)\(", made, re.MULTILINE) == []


@pytest.mark.parametrize("keeps_negated", [True, False])
def test_nothing_is_negated_where_a_compiler_does_not_keep_it(keeps_negated: bool, tmp_path: Path) -> None:
    """In what clang makes of texts: a product is subtracted by `fma(-a, b, c)` if nothing forbids it."""
    features = replace(PORTABLE, keeps_negated=keeps_negated)
    some = [*of_the_language(features), changes_signs.specialise(features)]
    options = ["-x", "cl", standard(PORTABLE), "-target", "spir64", "-w", "-O1", "-S", "-emit-llvm"]
    command = [str(clang()), *options, str(joined(some, tmp_path)), "-o", "-"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert made.count("\ndefine ") >= len(some)
    assert ("fneg" in made) is keeps_negated


def test_clang_refuses_what_a_device_does_not_offer(tmp_path: Path) -> None:
    """So that the tests above can fail: each of the features is missed where it is used."""
    for name in ("subgroups", "f16", "dot4"):
        assert "error:" in read_by_clang(of_the_language(ALONE[name]), PORTABLE, tmp_path), name


@pytest.mark.parametrize("name", FACTS)
def test_wgpu_takes_every_kernel(name: str) -> None:
    """It checks each text, as graphics cards are given it, and translates one of each kernel for the driver.

    What wgpu translates is the language, of which the test below has all, and all kernels that tests run.
    """
    made = kernels(FACTS[name])
    made_by_wgpu(list({one.name: one for one in made}.values()))
    checked_by_wgpu((one.name, one.wgsl()) for one in made)


@pytest.mark.parametrize("name", ALONE)
def test_wgpu_takes_the_whole_language(name: str) -> None:
    made_by_wgpu(of_the_language(ALONE[name]))


def test_wgpu_refuses_what_is_no_kernel() -> None:
    """So that the test above can fail: an unknown name, and a value of another type."""
    error = pytest.importorskip("wgpu").GPUError
    text = counts_up.specialise().wgsl()
    checked_by_wgpu([("right", text)])
    begin = text.index(") {\n") + 4  # of the kernel's body
    for wrong in ("let a = nowhere;", "let a: f32 = 1u;"):
        with pytest.raises(error, match=r"nowhere|expected to be `f32`"):
            checked_by_wgpu([("wrong", text[:begin] + wrong + text[begin:])])


def checked_by_wgpu(texts: Iterable[tuple[str, str]]) -> None:
    """Have wgpu read texts and check them."""
    device = open_driver("wgpu")._device  # type: ignore[attr-defined]
    for name, text in texts:
        pipelines._module(device, name, text)


def made_by_wgpu(some: Sequence[Specialised]) -> None:
    """Have wgpu check the texts and translate them for the driver; it must offer what they use."""
    driver = open_driver("wgpu")
    assert driver.facts.has_subgroups
    assert driver.facts.has_f16
    values, numbers = driver.buffer(1024, "values"), driver.buffer(1024, "numbers")
    for one in some:
        driver.record([Bound(one, ((values, 0, 1024),) * len(one.buffers), (numbers, 0, 1024))])


@pytest.mark.parametrize("name", FACTS)
def test_tint_takes_every_kernel(name: str) -> None:
    """Bound as in a model: what nodes make lies in the arena, of which some is written, so all of it is."""
    made = kernels(FACTS[name])
    assert complaints((one, {b.name for b in one.buffers} - OF_THE_ENGINE) for one in made) == []


def test_tint_takes_the_whole_language() -> None:
    assert complaints((one, ()) for features in ALONE.values() for one in of_the_language(features)) == []


def test_tint_wants_to_be_told_what_is_uniform() -> None:
    """So that the tests above can fail. wgpu does not ask."""
    told, untold = counts_up.specialise(), counts_up.specialise(TOLD=False)
    assert complaints([(told, ())]) == []
    (complaint,) = complaints([(untold, ())])
    assert "'workgroupBarrier' must only be called from uniform control flow" in complaint
    made_by_wgpu([told, untold])


def test_the_newest_clang_is_taken(tmp_path: Path) -> None:
    def make(folder: str, name: str, version: str) -> Path:
        file = tmp_path / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\necho {version}\n")
        file.chmod(0o755)
        return file

    path, llvm = str(tmp_path / "bin"), tmp_path / "lib"
    assert compiler.newest(path, llvm)[1].startswith("there is no clang; ")
    old = make("bin", "clang", "14.0.6")
    make("bin", "clang-format-19", "19.1.7")
    assert compiler.newest(path, llvm) == (None, compiler.newest(path, llvm)[1])
    assert compiler.newest(path, llvm)[1].startswith(f"clang is version 14 ({old}); ")
    of_pocl = make("lib/llvm-15/bin", "clang", "15.0.6")
    assert compiler.newest(path, llvm) == (of_pocl, "")
    on_path = make("bin", "clang-16", "16.0.6")
    assert compiler.newest(path, llvm) == (on_path, "")
