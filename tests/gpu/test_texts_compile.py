"""Every kernel's text for features that no device here offers, read by compilers that know these features.

clang is what drivers of OpenCL are made of; wgpu's own compiler checks a text before a driver sees it.
Nothing is run: what the texts mean is for the emulator and for devices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from graphml_gpu.driver import Bound
from graphml_gpu.language import PORTABLE, Features, Specialised
from graphml_gpu.language.intrinsics import OPENCL_PREAMBLE
from graphml_opencl.programs import standard

from tests.gpu.cover import GRAPHICS, SUBGROUPS, kernels, of_the_language, written
from tests.gpu.language.devices import open_driver
from tests.gpu.language.examples import EVERYTHING

EXTENSIONS = {
    "subgroups": ("cl_khr_subgroups", "cl_khr_subgroup_shuffle"),
    "f16": ("cl_khr_fp16",),
    "dot4": ("cl_khr_integer_dot_product",),
}
"""What a device has that offers a feature; it has no other."""
FACTS = {"no feature": GRAPHICS, **{f"subgroups {name}": facts for name, facts in SUBGROUPS.items()}}
ALONE = {
    "no feature": PORTABLE,
    "subgroups": replace(EVERYTHING, f16=False, dot4=False),
    "f16": replace(PORTABLE, f16=True),
    "dot4": replace(PORTABLE, dot4=True),
    "everything": EVERYTHING,
}
NO_CLANG = "no clang on the path to read OpenCL C that PoCL cannot; install it: apt-get install clang"


@cache
def clang() -> str:
    """The newest clang; without one the test is skipped, but where CI runs it fails."""
    names = ["clang", *(f"clang-{version}" for version in range(40, 13, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_CLANG)
    assert found is not None
    return found


def read_by_clang(some: Sequence[Specialised], features: Features, folder: Path) -> str:
    """What clang says of the texts, given the driver's options and the extensions that the features mean."""
    offered = [name for feature, names in EXTENSIONS.items() if getattr(features, feature) for name in names]
    extensions = ",".join(["-all", *(f"+{name}" for name in offered)])
    whole = []
    for i, kernel in enumerate(some):
        path = folder / f"{i}.{kernel.name}.cl"
        path.write_text(kernel.opencl())
        names = ("Params", kernel.name, *OPENCL_PREAMBLE, *(table.name for table in kernel.tree.tables))
        whole += [f"#define {name} {name}_{i}" for name in names]
        whole += [f'#include "{path.name}"', *(f"#undef {name}" for name in names)]
    together = folder / "together.cl"
    together.write_text("\n".join(whole) + "\n")
    options = ["-x", "cl", standard(features), "-target", "spir64", "-Xclang", f"-cl-ext={extensions}"]
    command = [clang(), *options, "-fsyntax-only", "-w", "-ferror-limit=0", str(together)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bool(run.returncode) == bool(run.stderr)
    return run.stderr


def test_every_kernel_is_looked_at() -> None:
    assert written() - {one.name for one in kernels(GRAPHICS)} == {"lanes"}
    assert {one.name for one in kernels(SUBGROUPS["of 32"])} >= {"mat_vec", "attention", "norm", "lanes"}
    assert all(len(kernels(facts)) >= 20 for facts in FACTS.values())


@pytest.mark.parametrize("name", FACTS)
def test_clang_takes_every_kernel(name: str, tmp_path: Path) -> None:
    assert read_by_clang(kernels(FACTS[name]), FACTS[name].features(), tmp_path) == ""


@pytest.mark.parametrize("name", ALONE)
def test_clang_takes_the_whole_language(name: str, tmp_path: Path) -> None:
    assert read_by_clang(of_the_language(ALONE[name]), ALONE[name], tmp_path) == ""


def test_clang_refuses_what_a_device_does_not_offer(tmp_path: Path) -> None:
    """So that the tests above can fail: each of the features is missed where it is used."""
    for name in ("subgroups", "f16", "dot4"):
        assert "error:" in read_by_clang(of_the_language(ALONE[name]), PORTABLE, tmp_path), name


@pytest.mark.parametrize("name", FACTS)
def test_wgpu_takes_every_kernel(name: str) -> None:
    made_by_wgpu(kernels(FACTS[name]))


@pytest.mark.parametrize("name", ALONE)
def test_wgpu_takes_the_whole_language(name: str) -> None:
    made_by_wgpu(of_the_language(ALONE[name]))


def made_by_wgpu(some: Sequence[Specialised]) -> None:
    """Have wgpu check the texts and translate them for the driver; it must offer what they use."""
    driver = open_driver("wgpu")
    assert driver.facts.has_subgroups
    assert driver.facts.has_f16
    values, numbers = driver.buffer(1024, "values"), driver.buffer(1024, "numbers")
    for kernel in some:
        driver.record([Bound(kernel, ((values, 0, 1024),) * len(kernel.buffers), (numbers, 0, 1024))])
