"""What `benchmarks/gpu.sh` brings to a machine: which wheels fit, which libraries and drivers it lacks.

And that it finds again what an earlier run found.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_kit
from benchmarks.gpu_kit import Found

SCRIPT = Path(gpu_kit.__file__)
VARIABLES = (
    "LD_LIBRARY_PATH",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "OCL_ICD_VENDORS",
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:  # set first, so that what is found is forgotten afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def having(*names: str) -> Callable[..., bool]:
    return lambda name, symbol="": name in names


def put(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("wheel", "does"),
    [
        ("numpy-2.4.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.0-cp311-cp311-manylinux_2_27_x86_64.whl", False),
        ("tokenizers-0.22.1-cp39-abi3-manylinux_2_17_x86_64.whl", True),
        ("later-1.0-cp313-abi3-any.whl", False),
        ("wgpu-0.32.0-py3-none-manylinux_2_28_x86_64.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("built-1.0-1-py3-none-any.whl", True),
    ],
)
def test_a_wheel_fits_by_its_name(wheel: str, does: bool) -> None:
    assert gpu_kit.fits(wheel, (3, 12)) is does


def test_wheels_are_unpacked_once_where_there_is_neither_pip_nor_venv(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "brought-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("brought/__init__.py", "HERE = 1\n")
        archive.writestr(
            "brought-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n"
        )
    command = [sys.executable, "-S", "-I", str(SCRIPT), "unpack", str(wheels), str(site)]
    for _ in range(2):
        subprocess.run(command, check=True)
    code = "import brought, importlib.metadata as m; print(brought.HERE, m.version('brought'))"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1.0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site", "wheels"]


def test_wheels_of_another_python_are_named(tmp_path: Path) -> None:
    put(tmp_path / "numpy-2.4.0-cp27-cp27-any.whl")
    put(tmp_path / "six-1.0-py3-none-any.whl")
    with pytest.raises(SystemExit, match=r"no wheel for Python 3\.\d+ of numpy$"):
        gpu_kit.unpack(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_only_libraries_that_the_system_lacks_are_brought(tmp_path: Path) -> None:
    folder = tmp_path / "loaders" / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    for name in ("libvulkan.so.1", "libvulkan.so.1.3.239", "libX11.so.6", "libOpenCL.so.1"):
        put(folder / name)
    found = Found()
    gpu_kit.bring_loaders(tmp_path, found, having("libX11.so.6"))
    assert sorted(path.name for path in (tmp_path / "lib").iterdir()) == ["libOpenCL.so.1", "libvulkan.so.1"]
    assert list(found.lines()) == [f"export LD_LIBRARY_PATH={tmp_path / 'lib'}"]
    elsewhere = Found()  # the kit on a machine that lacks less
    gpu_kit.bring_loaders(tmp_path, elsewhere, having("libX11.so.6", "libvulkan.so.1"))
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["libOpenCL.so.1"]
    for kit in (tmp_path, tmp_path / "empty"):
        nothing = Found()
        gpu_kit.bring_loaders(kit, nothing, having("libX11.so.6", "libvulkan.so.1", "libOpenCL.so.1"))
        assert list(nothing.lines()) == []


NVIDIA = having("libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-opencl.so.1")


@pytest.mark.parametrize(
    "manifest", ["etc/vulkan/icd.d/nvidia_icd.json", "usr/share/vulkan/icd.d/nvidia_icd.json"]
)
def test_drivers_that_are_named_once_are_not_named_again(manifest: str, tmp_path: Path) -> None:
    """Else the same GPU would be listed, and measured, twice."""
    put(tmp_path / manifest)
    put(tmp_path / "etc/OpenCL/vendors/nvidia.icd")
    found = Found()
    gpu_kit.find_nvidia(tmp_path, found, tmp_path, (), NVIDIA)
    assert found.variables == {}


def test_drivers_whose_names_a_container_lost_are_named(tmp_path: Path) -> None:
    put(tmp_path / "etc/OpenCL/vendors/pocl.icd", "libpocl.so\n")
    put(tmp_path / "usr/share/vulkan/icd.d/lvp_icd.json")
    found = Found()
    gpu_kit.find_nvidia(tmp_path, found, tmp_path, (), NVIDIA)
    assert "libGLX_nvidia.so.0" in Path(found.variables["VK_ADD_DRIVER_FILES"]).read_text()
    vendors = Path(found.variables["OCL_ICD_VENDORS"])
    assert sorted(path.name for path in vendors.iterdir()) == ["nvidia.icd", "pocl.icd"]
    assert (vendors / "nvidia.icd").read_text() == "libnvidia-opencl.so.1\n"
    again = Found()  # in a process that has them
    gpu_kit.find_nvidia(tmp_path, again, tmp_path, (), NVIDIA)
    assert again.variables == {}


def test_without_libraries_of_x_the_other_vulkan_is_named(tmp_path: Path) -> None:
    found = Found()
    gpu_kit.find_nvidia(tmp_path, found, tmp_path, (), having("libEGL_nvidia.so.0"))
    assert "libEGL_nvidia.so.0" in Path(found.variables["VK_ADD_DRIVER_FILES"]).read_text()
    nothing = Found()
    os.environ.pop("VK_ADD_DRIVER_FILES")
    gpu_kit.find_nvidia(tmp_path, nothing, tmp_path, (), having())
    assert nothing.variables == {}


def test_drivers_in_a_folder_of_a_container_are_found(tmp_path: Path) -> None:
    put(tmp_path / "nvidia/lib64/libnvidia-opencl.so.1")
    found = Found()
    gpu_kit.find_nvidia(tmp_path, found, tmp_path, (f"{tmp_path}/nvidia",), having())
    assert found.variables["LD_LIBRARY_PATH"] == f"{tmp_path}/nvidia/lib64"


def test_a_library_is_looked_for_as_programs_do() -> None:
    assert gpu_kit.loads("libc.so.6", "malloc")
    assert not gpu_kit.loads("libc.so.6", "no_such_function")
    assert not gpu_kit.loads("libnowhere.so.1")


def test_lines_are_a_shells(tmp_path: Path) -> None:
    found = Found()
    found.set("OCL_ICD_VENDORS", "/a folder/it's")
    (line,) = found.lines()
    done = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$OCL_ICD_VENDORS"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == "/a folder/it's"


def test_conformance_is_not_found_twice_with_the_same_sources(tmp_path: Path) -> None:
    known = {"backend": "opencl", "device": "a card", "driver": "1", "sources": gpu.sources(), "kernels": ""}
    right = {**known, "conformance": True, "limits": "ggml", "conformance_s": 7.0, "rows": []}
    assert gpu.checked(tmp_path, known) is None
    put(tmp_path / "broken.json", '{"devices": [')
    put(tmp_path / "wrong.json", json.dumps({"devices": [{**right, "conformance": False}]}))
    assert gpu.checked(tmp_path, known) is None
    put(tmp_path / "right.json", json.dumps({"devices": [right]}))
    assert gpu.checked(tmp_path, known) == {"conformance": True, "limits": "ggml", "conformance_s": 7.0}
    for name in known:
        assert gpu.checked(tmp_path, {**known, name: "another"}) is None


@pytest.mark.parametrize(("here", "first"), [(True, "smollm2"), (False, "smollm2-135m:Q4_1")])
def test_without_smollm2_its_shape_is_measured(
    here: bool, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphml.loading.fetch.is_downloaded", lambda known: here)
    assert gpu.default_models() == [first, "tinyllama-1.1b:Q4_0", "phi-2:Q4_K_M"]
    assert all(name.partition(":")[0] in gpu.SHAPES for name in gpu.default_models()[here:])
