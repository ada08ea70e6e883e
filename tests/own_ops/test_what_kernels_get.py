"""Kernels of ops of one's own on the processor: values that are equal and not the same, f16, exceptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_cpu.array_kernels import numba_compiler

from graphml.conformance.own_ops import KERNEL, check_own_ops
from graphml.errors import BackendError
from graphml.ir.dtype import F16, F32
from graphml.ir.language import Builder
from graphml.loading import discovery
from graphml.loading.own_ops import load_ops_of_file
from graphml.ops import ROWS, OwnOp, Type, f32, op, sample
from tests.own_ops.running import run, run_graph

X = np.arange(16, dtype=np.float32).reshape(2, 8) + 1


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(numba_compiler, "_loaded", {})


def like(**more: Any) -> Any:
    return op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))], **more)


def test_values_that_are_equal_and_compute_otherwise_have_kernels_of_their_own() -> None:
    @like()
    def signed(x: Any, *, by: tuple[float, ...] = (0.0,)) -> Any:
        return np.copysign(x, np.float32(by[0]))

    @signed.kernel("cpu")
    def signed_rows(out: Any, x: Any, begin: Any, end: Any, by: Any) -> None:
        for row in range(begin, end):
            for i in range(x.shape[1]):
                out[row, i] = np.copysign(x[row, i], np.float32(by[0]))

    g = Builder(max_tokens=2)
    x = g.input("x", F32, (g.n_tokens, 8))
    graph = g.finish(plus=g.call(signed, x), minus=g.call(signed, x, by=(-0.0,)))
    found, wanted = run_graph(graph, {"x": X})
    for name in wanted:
        assert np.array_equal(found[name], wanted[name])


def test_attributes_reach_a_kernel_in_any_order() -> None:
    @like()
    def ordered(x: Any, *, a: float = 1.0, b: float = 2.0, way: str = "up", c: float = 3.0) -> Any:
        return x * np.float32(a) + np.float32(b) * np.float32(c)

    @ordered.kernel("cpu")
    def ordered_rows(out: Any, x: Any, begin: Any, end: Any, c: Any, way: Any, b: Any, a: Any) -> None:
        for row in range(begin, end):
            for i in range(x.shape[1]):
                out[row, i] = x[row, i] * a + b * c if way == "up" else np.float32(0)

    found, wanted = run(ordered, X, a=5.0, b=7.0, c=11.0)
    assert np.array_equal(found["r0"], wanted["r0"])


@pytest.mark.parametrize("backend", ["cpu", "numba"])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_of_numba_makes_the_step_fail(backend: str, threads: int) -> None:
    @like()
    def first_ones(x: Any) -> Any:
        return x

    @first_ones.kernel("cpu", "numba")
    def first_rows(out: Any, x: Any, begin: Any, end: Any) -> None:
        for row in range(begin, end):
            n = int(x[row, 0])
            out[row] = x[row, :n]  # another shape for n < 8

    whole, one_short = X.copy(), X.copy()
    whole[:, 0] = 8
    one_short[1, 0] = 3
    one_short[0, 0] = 8
    found, wanted = run(first_ones, whole, backend, threads)
    assert np.array_equal(found["r0"], wanted["r0"])
    with pytest.raises(BackendError, match="first_ones: the compiled kernel of first_ones raised an exc"):
        run(first_ones, one_short, backend, threads)


def f16(name: str) -> OwnOp:
    @op(
        shape=lambda x: Type(F32, x.shape), dtypes={"x": F16}, samples=[sample(Type(F16, (ROWS, 8)))],
        name=name,
    )  # fmt: skip
    def large(x: Any) -> Any:
        return (np.abs(x) > 1).astype(np.float32)

    return large


def test_f16_is_given_by_its_bits_compiled_and_not() -> None:
    made, seen = f16("large"), []

    def note(x: Any) -> None:
        seen.append((x.dtype, float(x.view(np.float16).std())))

    @made.kernel("cpu")
    def large_rows(out: Any, x: Any, begin: Any, end: Any) -> None:
        for row in range(begin, end):
            for i in range(x.shape[1]):
                out[row, i] = np.float32(1) if (x[row, i] & 0x7FFF) > 0x3C00 else np.float32(0)

    (result,) = check_own_ops([made], discovery.backend("cpu"), [1], timed=False)
    assert (result.how, result.failed) == (KERNEL, ())
    other = f16("unchecked")

    @other.kernel("cpu")
    def unchecked_rows(out: Any, x: Any, begin: Any, end: Any) -> None:
        note(x)

    (result,) = check_own_ops([other], discovery.backend("cpu"), [1], timed=False)
    assert "cannot be compiled" in result.failed[0].problem  # Python has run it before
    assert seen
    assert all(kind == np.uint16 and 0.5 < deviation < 2 for kind, deviation in seen)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("math.log(x[row, i] * x[row, i] - x[row, i] * x[row, i])", ""),  # a domain error in Python alone
        ("math.exp(np.float64(x[row, i]) * 0 + 1000)", ""),
        ("x[row, i + 1]", "out of bounds"),
    ],
)
def test_what_python_alone_raises_is_no_verdict(line: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    wanted = "np.full_like(x, -np.inf)" if "log" in line else "np.full_like(x, np.inf)"
    file.write_text(f"""
import math
import numpy as np
from graphml.ops import ROWS, f32, op, sample
@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
def mine(x): return {wanted} + x * 0
@mine.kernel("cpu")
def rows(out, x, begin, end):
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = {line}
""")
    (result,) = check_own_ops(load_ops_of_file(file), discovery.backend("cpu"), [1], timed=False)
    assert [one for one in result.failed if problem not in one.problem] == []
    assert bool(result.failed) == bool(problem)


CALLING = """
import numpy as np
import package_of_helpers
import package_of_helpers.inner as named
from graphml.ops import ROWS, f32, op, sample

def by(factor, other):
    def times(v): return other(v) * np.float32(factor)
    return times

def plus(v): return v + np.float32(1)

def kernel(helper):
    def rows(out, x, begin, end):
        for row in range(begin, end):
            for i in range(x.shape[1]):
                v = package_of_helpers.inner.half(x[row, i]) + named.half(x[row, i])
                out[row, i] = helper(v) + np.float32(package_of_helpers.inner.FACTOR)
    return rows

@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
def calling(x): return (x + 1) * 3 + 5

calling.kernel("cpu")(kernel(by(3.0, plus)))
"""


def test_functions_of_modules_and_closures_are_compiled_with_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_helpers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(
        "import package_of_helpers\nimport numpy as np\nFACTOR = 5\n"
        "def half(v): return twice(v) * np.float32(0.25)\ndef twice(v): return v * np.float32(2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "calling.py"
    file.write_text(CALLING)
    (calling,) = load_ops_of_file(file)
    found, wanted = run(calling, X)
    assert np.array_equal(found["r0"], wanted["r0"])
