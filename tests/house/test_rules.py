"""The rules of the house, held by the tools that know them: style, types, directions of imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IR = ROOT / "graphml" / "ir"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, "-m", "ruff", "check", "."], id="ruff"),
        pytest.param([sys.executable, "-m", "ruff", "format", "--check", "."], id="format"),
        pytest.param([sys.executable, "-m", "mypy"], id="mypy"),
        pytest.param([str(Path(sys.executable).with_name("lint-imports"))], id="imports"),
    ],
)
def test_the_tool_finds_nothing(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for root in ("graphml", "quant", "backends", "models")
        for path in (ROOT / root).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 500 and path.name != "codebooks.py"
    }
    assert not long


def test_files_import_each_other_one_way() -> None:
    """Imports for type checkers alone count too: a circle of files is one file in several."""
    roots = [ROOT, ROOT / "quant", ROOT / "backends", ROOT / "models"]
    packages = [(root, folder) for root in roots for folder in root.glob("graphml*") if folder.is_dir()]
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for root, folder in packages
        for path in folder.rglob("*.py")
    }
    reads: dict[str, set[str]] = {}
    for name, path in files.items():
        found = list(_imports(ast.parse(path.read_text())))
        names = {f"{node.module}.{alias.name}" for node in found for alias in node.names}
        whole = {
            str(node.module)
            for node in found
            if not {f"{node.module}.{a.name}" for a in node.names} & set(files)
        }
        reads[name] = {one for one in names | whole if one in files and one != name}
    assert reads["graphml.ir.node"] >= {"graphml.ir.op"}  # or files are found in another way by now
    TopologicalSorter(reads).prepare()


def _imports(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """Those of all statements; expressions, which most of a tree is, have none."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ImportFrom):
            yield inner
        elif isinstance(inner, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _imports(inner)


def test_configurations_of_architectures_are_values_whose_names_tools_know() -> None:
    """No `Any`; the only dictionary that makes one is another's fields: `cls(**vars(known), scale=...)`."""
    loose = []
    for path in sorted((ROOT / "models" / "graphml_models").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            untyped = isinstance(node, ast.Name) and node.id == "Any"
            made = isinstance(node, ast.Call) and ast.unparse(node.func) in ("cls", "replace", "Config")
            spread = [one.value for one in node.keywords if one.arg is None] if made else []
            if untyped or any(not ast.unparse(value).startswith("vars(") for value in spread):
                loose.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not loose


def test_every_module_says_what_it_is() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for root in ("graphml", "quant", "backends", "models", "benchmarks")
        for path in (ROOT / root).rglob("*.py")
        if not path.read_text().startswith('"""')
    ]
    assert not bare


def test_similar_names_are_searched_in_one_place() -> None:
    searching = [
        str(path.relative_to(ROOT))
        for root in ("graphml", "quant", "backends", "models")
        for path in (ROOT / root).rglob("*.py")
        if "difflib" in path.read_text()
    ]
    assert searching == [str(Path("graphml", "errors.py"))]


def test_only_settings_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for root in ("graphml", "quant", "backends", "models")
        for path in (ROOT / root).rglob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    ]
    assert readers == ["graphml/settings.py"]


RENDERERS = {
    f"backends/graphml_gpu/language/{name}.py"
    for name in ("wgsl", "opencl", "intrinsics", "reserved", "wgsl_header", "opencl_header", "text_kernels")
}
"""Those of the language, and those that read texts which come with ops of one's own."""
WORDS = (
    "@compute", "@group(", "@builtin", "var<", "array<", "workgroupBarrier", "subgroupAdd", "pack2x16float",
    "__kernel ", "__global ", "__local ", "__constant ", "get_global_id", "CLK_LOCAL", "sub_group_reduce",
    "vload_half",
)  # fmt: skip


def test_text_for_gpus_stands_in_the_renderers_alone() -> None:
    """Each kernel of graphml exists once, in Python: nowhere else is a word of WGSL or of OpenCL C."""
    found = {
        str(path.relative_to(ROOT))
        for root in ("graphml", "quant", "backends", "models")
        for path in (ROOT / root).rglob("*")
        if path.is_file() and path.suffix not in ("", ".pyc", ".npz", ".bin")
        if any(word in path.read_text() for word in WORDS)
    }
    assert found <= RENDERERS
    assert len(found) > 2  # or the words are others by now


def test_graphml_knows_no_gpu_backend_by_name() -> None:
    named = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "graphml").rglob("*.py")
        if re.search(r"(?i)\bwgpu|opencl", path.read_text())
    ]
    assert not named
