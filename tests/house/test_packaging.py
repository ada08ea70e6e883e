"""The wheel holds exactly the packages of the four source roots, and importing graphml stays light."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = {"graphml": ".", "graphml_quant": "quant", "graphml_cpu": "backends", "graphml_reference": "backends",
         "graphml_gpu": "backends", "graphml_wgpu": "backends", "graphml_opencl": "backends",
         "graphml_numba": "backends",
         "graphml_models": "models"}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's files."""
    source = tmp_path_factory.mktemp("packaging") / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    return source


def test_the_wheel_holds_every_package_and_nothing_else(source: Path, tmp_path: Path) -> None:
    """Every file of them, whatever its ending: data that the wheel lacks fail in installs alone."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set()
    for package, root in ROOTS.items():
        folder = source / root / package
        expected |= {str(path.relative_to(source / root)) for path in folder.rglob("*") if path.is_file()}
    assert inside == expected


def test_an_editable_install_is_found_beside_a_folder_of_that_name(source: Path, tmp_path: Path) -> None:
    """As the clone is one, in the folder above it."""
    python, beside = tmp_path / "venv" / "bin" / "python", tmp_path / "beside"
    venv.create(tmp_path / "venv", symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "-q", "-e"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ROOTS:
        (beside / name).mkdir(parents=True)
    code = f"import importlib.util as u; print([u.find_spec(name).origin for name in {tuple(ROOTS)}])"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [python, "-c", code], cwd=beside, env=env, capture_output=True, text=True, check=True
    )
    assert found.stdout == f"{[str(source / root / name / '__init__.py') for name, root in ROOTS.items()]}\n"


def test_import_graphml_needs_neither_llvm_nor_a_gpu_library() -> None:
    heavy = ("llvmlite", "wgpu", "pyopencl")
    code = f"import sys, graphml; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_build_product_is_tracked() -> None:
    """Wheels that pip left beside the sources were committed twice: 20 MB for every clone."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")  # fmt: skip
    sizes = {name: (ROOT / name).stat().st_size for name in filter(None, tracked) if (ROOT / name).is_file()}
    assert sizes
    products = [name for name in sizes if name.endswith((".whl", ".so", ".pyc", ".tar.gz"))]
    large = [name for name, size in sizes.items() if size > 2_000_000]
    assert not products, f"built, not written: {products}"
    assert not large, f"more than 2 MB: {large}"
