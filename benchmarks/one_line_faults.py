"""How many random faults of one line the tests of a folder find, one fault at a time in a copy of the tree.

Nothing is timed. A fault is a comparison, an operator, a constant, a condition or a return that another takes
the place of. Printed: each fault that no test found, with its line, and how many were found.

    python benchmarks/one_line_faults.py graphml/sampling tests/sampling tests/structured --count 40 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes that can be wrong, and how; not those of annotations and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            yield node, "compared"
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            yield node, "computed"
        elif isinstance(node, ast.BoolOp):
            yield node, "joined"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "negated"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and hasattr(node, "lineno"):
            yield node, "constant"
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield node, "flag"
        elif isinstance(node, ast.Return) and node.value is not None:
            yield node, "returned"
        elif isinstance(node, ast.If):
            yield node, "condition"


def planted(source: str, rng: random.Random) -> tuple[str, int, str] | None:
    """The source with one fault, its line and what it is; None where there is no place for one."""
    tree = ast.parse(source)
    every = list(places(tree))
    if not every:
        return None
    node, kind = rng.choice(every)
    if kind == "compared":
        node.ops[0] = COMPARED[type(node.ops[0])]()  # type: ignore[attr-defined]
    elif kind == "computed":
        node.op = COMPUTED[type(node.op)]()  # type: ignore[attr-defined]
    elif kind == "joined":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()  # type: ignore[attr-defined]
    elif kind == "negated":
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)  # type: ignore[attr-defined]
    elif kind == "constant":
        node.value += rng.choice((-1, 1))  # type: ignore[attr-defined]
    elif kind == "flag":
        node.value = not node.value  # type: ignore[attr-defined]
    elif kind == "returned":
        node.value = ast.Constant(None)  # type: ignore[attr-defined]
    else:
        node.test = ast.Constant(rng.random() < 0.5)  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree)), node.lineno, kind  # type: ignore[attr-defined]


def is_found(copy: Path, tests: list[str], seconds: float) -> bool:
    """Whether a test fails, or none ends in time."""
    roots = [copy, *(copy / name for name in ("backends", "models", "quant"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    """Plant faults and print those that stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", help="whose Python files get the faults")
    parser.add_argument("tests", nargs="+", help="what is run")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300.0, help="most time of one run")
    how = parser.parse_args()
    rng, n_found, n_planted = random.Random(how.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
        files = sorted((copy / how.folder).rglob("*.py"))
        if not is_found(copy, how.tests, how.seconds):
            print(f"{len(files)} files; without a fault all tests pass", flush=True)
        else:
            raise SystemExit("the tests fail without a fault")
        while n_planted < how.count:
            path = rng.choices(files, [file.stat().st_size for file in files])[0]
            source = path.read_text(encoding="utf-8")
            fault = planted(source, rng)
            if fault is None or fault[0] == ast.unparse(ast.parse(source)):
                continue
            n_planted += 1
            path.write_text(fault[0], encoding="utf-8")
            noticed = is_found(copy, how.tests, how.seconds)
            path.write_text(source, encoding="utf-8")
            n_found += noticed
            if not noticed:
                line = source.splitlines()[fault[1] - 1].strip()
                print(f"not found: {path.relative_to(copy)}:{fault[1]} ({fault[2]}): {line}", flush=True)
    print(f"{n_found} of {n_planted} found", flush=True)


if __name__ == "__main__":
    main()
