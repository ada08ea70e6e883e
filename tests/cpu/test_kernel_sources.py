"""The files of kernels: the hash of compiled kernels covers all that their machine code depends on."""

import ast
from collections.abc import Iterator
from pathlib import Path

from graphml_cpu import kernel_cache

import graphml

ROOT = Path(kernel_cache.__file__).parent
FRAMEWORK = Path(graphml.__file__).parent
# It finds the level of this host; the hash has the level itself.
FINDS_THE_LEVEL = ROOT / "processors.py"


def modules_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def files_imported(path: Path) -> Iterator[Path]:
    """Files of the package that a file imports, with the `__init__.py` of every folder on the way."""
    for module in modules_imported(path):
        package, *names = module.split(".")
        if package == ROOT.name:
            steps = [ROOT.joinpath(*names[: i + 1]) for i in range(len(names))]
            yield from (file for step in steps if (file := step / "__init__.py").is_file())
            yield from (file for step in steps if (file := step.with_suffix(".py")).is_file())


def files_with_factories() -> set[Path]:
    found = {ROOT / "runtime" / "tape_walker.py", *(ROOT / "kernels").rglob("*.py")}
    assert len(found) > 80  # or kernels are elsewhere by now
    return found


def test_the_hash_covers_every_file_that_kernels_depend_on() -> None:
    covered = set(kernel_cache._covered_files())
    missing: dict[str, str] = {}
    seen, rest = set[Path](), dict.fromkeys(files_with_factories(), "has factories")
    while rest:
        path, reason = rest.popitem()
        seen.add(path)
        if path not in covered and path != FINDS_THE_LEVEL:
            missing[str(path.relative_to(ROOT))] = reason
        rest |= {file: f"imported by {path.name}" for file in files_imported(path) if file not in seen}
    assert not missing
    assert ROOT / "frontend" / "__init__.py" in seen
    assert ROOT / "runtime" / "sync.py" in seen


def test_the_hash_covers_what_kernels_import_from_the_framework() -> None:
    """And what that imports; errors decide about no code."""
    covered = set(kernel_cache._covered_files())
    kernels = [*(ROOT / "kernels").rglob("*.py"), *(ROOT / "simd").rglob("*.py")]
    rest = {file for path in kernels for file in framework_files(path)}
    assert rest  # or this test reads the wrong folders
    seen = set[Path]()
    while rest:
        path = rest.pop()
        seen.add(path)
        rest |= set(framework_files(path)) - seen
    assert seen <= covered


def framework_files(path: Path) -> Iterator[Path]:
    """Modules of the framework that a file imports from, but for errors."""
    for module in modules_imported(path):
        package, *names = module.split(".")
        file = FRAMEWORK.joinpath(*names).with_suffix(".py")
        if package == FRAMEWORK.name and names != ["errors"] and file.is_file():
            yield file


def test_every_source_of_the_hash_exists() -> None:
    assert [name for name in kernel_cache.KERNEL_SOURCES if not (ROOT / name).exists()] == []
    assert [name for name in kernel_cache.FRAMEWORK_SOURCES if not (FRAMEWORK / name).exists()] == []


def test_modules_are_covered_as_their_files_are() -> None:
    covered = set(kernel_cache._covered_files())
    for root in (ROOT, FRAMEWORK):
        for path in root.rglob("*.py"):
            name = ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
            assert kernel_cache.is_covered(name.removesuffix(".__init__")) == (path in covered), name
