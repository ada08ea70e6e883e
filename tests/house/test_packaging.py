"""The wheel holds exactly the packages of the four source roots, and importing graphml stays light."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = {"graphml": ".", "graphml_quant": "quant", "graphml_cpu": "backends", "graphml_reference": "backends",
         "graphml_gpu": "backends", "graphml_wgpu": "backends", "graphml_opencl": "backends",
         "graphml_numba": "backends",
         "graphml_models": "models"}  # fmt: skip

ENDINGS = (".py", ".json", ".npz", ".html", ".css", ".js", ".svg", ".webmanifest")


def test_the_wheel_holds_every_package_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set()
    for package, root in ROOTS.items():
        folder = source / root / package
        for path in folder.rglob("*"):
            named = path.suffix in ENDINGS or path.name == "py.typed"
            if named or path.parent.name == "examples":
                expected.add(str(path.relative_to(source / root)))
    assert inside == expected


def test_import_graphml_needs_neither_llvm_nor_a_gpu_library() -> None:
    heavy = ("llvmlite", "wgpu", "pyopencl")
    code = f"import sys, graphml; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
