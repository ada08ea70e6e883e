"""Locals and parameters say their subject: names that say nothing are counted, package by package.

Counts bindings: assignments, loops, comprehensions, `with`, `as`, parameters. Knows nothing of attributes,
fields of classes and names of functions.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VAGUE = frozenset({"one", "found", "given", "made", "told"})
MAY_BIND = re.compile(rf"\b({'|'.join(VAGUE)})\b")
MOST = {"backends/graphml_cpu": 28, "backends/graphml_gpu": 12, "graphml/weights": 4}
"""Bindings at most, by package: those that are not here have none. What CPU and GPU have is in kernels."""


def bindings(tree: ast.AST) -> list[tuple[str, int]]:
    """(name, line) of each binding of a vague name; without those of a class's body, which are its fields."""
    nodes = list(ast.walk(tree))
    statements = (part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body)
    fields = {id(part) for statement in statements for part in ast.iter_child_nodes(statement)}
    listed = []
    for node in nodes:
        name: str | None = None
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        elif isinstance(node, (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)):
            name = node.name
        if name in VAGUE:
            listed.append((str(name), getattr(node, "lineno", 0)))
    return listed


def package_of(path: Path) -> str:
    """`graphml/sampling`, `backends/graphml_cpu`, `models`, `quant`; `graphml` for files beside packages."""
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[: 2 if parts[0] in ("graphml", "backends") else 1])


def test_locals_say_their_subject() -> None:
    places: dict[str, list[str]] = {}
    for root in ("graphml", "backends", "models", "quant"):
        for path in (ROOT / root).rglob("*.py"):
            text = path.read_text()
            for name, line in bindings(ast.parse(text)) if MAY_BIND.search(text) else ():
                places.setdefault(package_of(path), []).append(f"{path.relative_to(ROOT)}:{line} {name}")
    assert places  # or bindings are found in another way by now
    for package, listed in sorted(places.items()):
        most = MOST.get(package, 0)
        assert len(listed) <= most, (
            f"{package} binds {', '.join(sorted(VAGUE))} {len(listed)} times, wanted {most} at most: name "
            "the new ones by their subject (`tensor`, `node`, `match`, `rows`). A package that has fewer "
            f"lowers its number in MOST; files that move take theirs along. Bindings: {sorted(listed)}"
        )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(one, *given, made=1, **told): found = 2", ["one", "given", "made", "told", "found"]),
        ("[one for one in x]; (lambda found: 0)", ["one", "found"]),
        ("for i, (one, _) in x: pass\nwith y as made: pass", ["one", "made"]),
        ("if (found := f()): pass\nmatch x:\n  case [one, *given]: pass", ["found", "one", "given"]),
        ("class A:\n  one: int\n  found = 1\n  def told(self): return self.made", []),
        ("print(one, found=given)", []),
    ],
)
def test_bindings_are_found(text: str, names: list[str]) -> None:
    assert sorted(name for name, _ in bindings(ast.parse(text))) == sorted(names)
