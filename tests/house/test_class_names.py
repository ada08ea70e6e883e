"""A class name is one thing in the product: whoever searches for it meets one definition."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("graphml", "backends", "models", "quant")
CONVENTIONS = {"Config"}
"""The settings of an architecture, one class in each file of one."""


def files_by_class(root: Path) -> dict[str, list[str]]:
    """The files that define a class of a name, for all classes of modules."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for top in PRODUCT:
        for path in sorted((root / top).rglob("*.py")):
            for statement in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(statement, ast.ClassDef):
                    files[statement.name].append(str(path.relative_to(root)))
    return files


def test_a_class_name_is_one_thing() -> None:
    twice = {name: files for name, files in files_by_class(ROOT).items() if len(files) > 1}
    assert twice.keys() <= CONVENTIONS, f"classes of one name: {twice}"


def test_two_classes_of_one_name_are_seen(tmp_path: Path) -> None:
    for file in ("graphml/a.py", "backends/b/c.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("class Row:\n    class Cell:\n        pass\n")
    assert files_by_class(tmp_path) == {"Row": ["graphml/a.py", "backends/b/c.py"]}
