"""The hash of a function changes with all that decides about its result, and is equal in every process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from graphml.ir.function_hash import reached
from graphml.loading.own_ops import load_ops_of_file

HEAD = "import enum\nimport types\nimport functools\nimport numpy as np\n"
COMPILED = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import numba"], capture_output=True, check=False).returncode != 0,
    reason="without numba",
)


def hash_of(text: str) -> str:
    """Of the function f of a text."""
    names: dict[str, Any] = {"__name__": "mine"}
    exec(HEAD + textwrap.dedent(text), names)
    return reached(names["f"]).hash


UP_AND_DOWN = "up = lambda x: x + 1\ndown = lambda x: x - 1\n"
CHANGES = {
    "which function a name is": (
        UP_AND_DOWN + "pick = up\ndef f(x): return up(x) + down(x) * 2 + pick(x)", "pick = up", "pick = down",
    ),
    "which function a table has": (
        UP_AND_DOWN + "picks = [up]\ndef f(x): return up(x) + down(x) * 2 + picks[0](x)", "[up]", "[down]",
    ),
    "a member of an enum": (
        "class Mode(enum.Enum):\n    A = 2\ndef f(x): return x * Mode.A.value", "A = 2", "A = 3",
    ),
    "a member by its own name": (
        "class Mode(enum.Enum):\n    A = 2\nA = Mode.A\ndef f(x): return x * A.value", "A = 2", "A = 3",
    ),
    "an attribute of a class": ("class C:\n    F = 2\ndef f(x): return x * C.F", "F = 2", "F = 3"),
    "an attribute of a base": (
        "class B:\n    F = 2\nclass C(B): pass\ndef f(x): return x * C.F", "F = 2", "F = 3",
    ),
    "a static method": (
        "class C:\n    @staticmethod\n    def by(): return 2\ndef f(x): return x * C.by()",
        "return 2", "return 3",
    ),
    "an attribute of an object": (
        "class C:\n    def __init__(self, v): self.v = v\nc = C(np.arange(4000.))\n"
        "def f(x): return x * c.v[5]",
        "arange(4000.)", "arange(4000.) * (np.arange(4000) != 2000)",
    ),
    "a namespace": (
        "c = types.SimpleNamespace(v=np.arange(4000.))\ndef f(x): return x * c.v[5]",
        "arange(4000.)", "arange(4000.) * (np.arange(4000) != 2000)",
    ),
    "a partial function": (
        "def h(x, by): return x * by\ng = functools.partial(h, by=2)\ndef f(x): return g(x)", "by=2", "by=3",
    ),
    "what is decorated": (
        "@functools.cache\ndef h(): return 2\ndef f(x): return x * h()", "return 2", "return 3",
    ),
    "a bound method": (
        "class C:\n    def by(self): return 2\nby = C().by\ndef f(x): return x * by()",
        "return 2", "return 3",
    ),
    "a default": ("def h(x, v=2): return x * v\ndef f(x): return h(x)", "v=2", "v=3"),
    "a large default": (
        "def h(x, v=np.arange(4000.)): return x * v[5]\ndef f(x): return h(x)",
        "arange(4000.)", "arange(4000.) * (np.arange(4000) != 2000)",
    ),
    "a default by name": ("def h(x, *, v=2): return x * v\ndef f(x): return h(x)", "v=2", "v=3"),
    "the sign of zero": ("V = 0.0\ndef f(x): return x * V", "0.0", "-0.0"),
    "a whole number": ("V = 1\ndef f(x): return x * V", "V = 1", "V = 1.0"),
    "True": ("V = (1,)\ndef f(x): return x * V[0]", "(1,)", "(True,)"),
    "a set in the code": ("def f(x): return x in {'a', 'b'}", "'b'}", "'c'}"),
    "an array of objects": (
        "V = np.array([2, None], object)\ndef f(x): return x * V[0]", "[2, None]", "[3, None]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", CHANGES)
def test_a_change_of_what_is_read_changes_the_hash(which: str) -> None:
    text, old, new = CHANGES[which]
    assert text.count(old) == 1
    assert hash_of(text) == hash_of(text + "\n# a remark")
    assert hash_of(text) != hash_of(text.replace(old, new))


@COMPILED
@pytest.mark.parametrize(
    "decorator", ["njit", "vectorize", "guvectorize(['(f4[:], f4[:])'], '(n)->(n)')", "stencil"]
)
def test_a_compiled_function_counts_by_its_code(decorator: str) -> None:
    gives = "y[0] = x[0] * 2" if decorator.startswith("gu") else "return x[0] * 2"
    given = "x, y" if decorator.startswith("gu") else "x"
    text = f"import numba\n@numba.{decorator}\ndef h({given}):\n    {gives}\ndef f(x): return h(x)"
    assert hash_of(text) == hash_of(text + "\n# a remark")
    assert hash_of(text) != hash_of(text.replace("* 2", "* 3"))


def test_modules_within_modules_count_by_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_factors"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    text = f"import {package.name}.sub as sub\nimport {package.name}\n"
    text += f"def f(x): return x * {package.name}.sub.FACTOR"

    def with_factor(factor: int) -> str:
        (package / "sub.py").write_text(f"FACTOR = {factor}\nUNUSED = object()\n")
        for name in (package.name, f"{package.name}.sub"):
            sys.modules.pop(name, None)
        (tmp_path / package.name / "sub.py").touch()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            return hash_of(text)
        finally:
            sys.dont_write_bytecode = before

    assert with_factor(2) == with_factor(2)
    assert with_factor(2) != with_factor(3)


def test_a_raise_in_a_method_of_a_class_is_not_called() -> None:
    names: dict[str, Any] = {}
    text = "class C:\n    F = 2\n    def no(self): raise ValueError\ndef h(): return 1\n"
    exec(text + "def f(x): return x * C.F + h()", names)
    assert [one.__name__ for one in reached(names["f"]).functions] == ["f", "h"]


def test_a_function_that_is_not_there_yet_is_no_error() -> None:
    def outer() -> Any:
        def inner() -> Any:
            return later

        found = reached(inner).hash
        later = 1
        return found, reached(inner).hash, later

    first, second, _ = outer()
    assert first != second


def test_a_fused_op_changes_with_the_ops_of_its_decomposition(tmp_path: Path) -> None:
    text = """
    from graphml.ir.ops.elementwise import mul
    from graphml.ops import ROWS, f32, fused, op, sample

    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
    def plus(x): return x + 1

    @fused(find=lambda x, y: mul(plus(x), y), samples=[sample(f32(ROWS, 8), f32(ROWS, 8))])
    def plus_mul(g, x, y): return g.mul(g.plus(x), y)
    """

    def definition(text: str) -> str:
        file = tmp_path / "mine.py"
        file.write_text(textwrap.dedent(text))
        return load_ops_of_file(file)[1].definition

    assert definition(text) == definition(text + "    # a remark")
    assert definition(text) != definition(text.replace("x + 1", "x + 2"))


IN_EVERY_PROCESS = """
import functools
import re
class Plain: pass
OBJECT, SET = Plain(), {"a", "b", "c", ("d", 1), Plain}
FOUND = functools.partial(re.compile("x").match, pos=1)
def g(x, way="a"):
    return x if way in {"up", "down", "left", "right"} else (OBJECT, SET, FOUND)
"""


def hashes_of_processes(text: str) -> set[str]:
    text += "\nfrom graphml.ir.function_hash import reached\nprint(reached(g).hash)\n"
    runs = [
        subprocess.run(
            [sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]  # fmt: skip
    return set(runs)


def test_a_hash_is_the_same_in_every_process() -> None:
    """Sets have another order in each, objects another address."""
    assert len(hashes_of_processes(IN_EVERY_PROCESS)) == 1


@COMPILED
def test_options_of_numba_are_the_same_in_every_process() -> None:
    text = "import numba\n@numba.njit(fastmath={'reassoc', 'contract', 'nsz', 'arcp', 'afn'})\n"
    assert len(hashes_of_processes(text + "def f(x):\n    return x\ndef g(x):\n    return f(x)\n")) == 1
