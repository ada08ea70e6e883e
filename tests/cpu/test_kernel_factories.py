"""Factories of kernels: every one is referenced, and named by a literal that a search for it finds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import graphml_cpu

ROOT = Path(graphml_cpu.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
CALLING = "KernelRef(", "loops.kernel("
CALLERS = [
    path
    for path in TREES
    if any(one in path.read_text().replace("ArrayKernelRef(", "") for one in CALLING)
    and path.name != "compiler.py"
]


def texts(path: Path, start: str) -> set[str]:
    """String literals that begin with `start`; parts of f-strings do not count."""
    inside = {
        id(part) for node in ast.walk(TREES[path]) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    return {
        node.value
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
        if node.value.startswith(start)
    }


def factories(path: Path) -> dict[str, ast.FunctionDef]:
    found = [node for node in TREES[path].body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in found if node.name.startswith("make_")}


def makes_a_kernel(factory: ast.FunctionDef) -> bool:
    """Whether it holds a function of `ith` and `nth`; other factories make parts of kernels."""
    inner = [node for node in ast.walk(factory) if isinstance(node, ast.FunctionDef)]
    return any([argument.arg for argument in node.args.args[:2]] == ["ith", "nth"] for node in inner)


def names_used() -> Iterator[str]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
        yield from texts(path, "make_")


def test_every_factory_is_referenced() -> None:
    literals = {name for path in CALLERS for name in texts(path, "make_")}
    used, unused, kernels = set(names_used()), [], 0
    for path in TREES:
        for name, factory in factories(path).items():
            kernels += makes_a_kernel(factory)
            if name not in (literals if makes_a_kernel(factory) else used):
                unused.append(f"{path.relative_to(ROOT)}: {name}")
    assert not unused
    assert kernels > 40  # or factories look otherwise by now


def test_factories_named_by_lowerings_exist() -> None:
    """In one of the modules that the same file names."""
    for path in CALLERS:
        modules = [ROOT.parent / f"{module.replace('.', '/')}.py" for module in texts(path, "graphml_cpu.")]
        made = {name for module in modules for name in factories(module)}
        assert modules, path.name
        assert texts(path, "make_") <= made, path.name


def test_no_name_of_a_module_or_factory_is_composed() -> None:
    for path in TREES:
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "KernelRef":
                given = [
                    *node.args[1:3],
                    *(one.value for one in node.keywords if one.arg in ("module", "factory")),
                ]
                assert all(isinstance(one, ast.Constant | ast.Name) for one in given), f"{path}:{node.lineno}"
            if isinstance(node, ast.JoinedStr):
                parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                assert not any(part.startswith(("make_", "graphml_cpu.")) for part in parts), (
                    f"{path}:{node.lineno}"
                )
