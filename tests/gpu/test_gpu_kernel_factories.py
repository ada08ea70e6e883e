"""Kernels for GPUs, their factories and helpers: each is used by its name, which a search finds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import graphml_gpu

ROOT = Path(graphml_gpu.__file__).parent
TREES = {path: ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
KERNELS = [path for path in TREES if ROOT / "kernels" in path.parents and path.name != "__init__.py"]


def defined(path: Path) -> Iterator[str]:
    """Functions and values of a module, by name; a format's reader is found by its file's name."""
    for node in TREES[path].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def read(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def test_every_kernel_and_helper_is_used() -> None:
    used = {name for tree in TREES.values() for name in read(tree)}
    names = {
        name: path
        for path in KERNELS
        for name in defined(path)
        if path.parent.name != "formats" or name != path.stem.upper()
    }
    assert sum(name.startswith("make_") for name in names) > 5  # or factories look otherwise by now
    unused = [f"{path.relative_to(ROOT)}: {name}" for name, path in names.items() if name not in used]
    assert not unused
