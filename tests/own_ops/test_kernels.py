"""Kernels of ops of one's own on the processor: arrays and rows, what is refused, what is kept on disk."""

from __future__ import annotations

import functools
import importlib.util
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_cpu.array_kernels import numba_compiler

from graphml.conformance.own_ops import APART, KERNEL, NUMPY, check_own_ops
from graphml.errors import BackendError
from graphml.ir.dtype import F32, I32
from graphml.ir.ops.rules import below
from graphml.ir.own_op import OwnOp
from graphml.loading import discovery
from graphml.loading.own_ops import load_ops_of_file
from graphml.ops import ROWS, Type, f32, i32, op, sample
from tests.own_ops.conftest import SOFTPICK
from tests.own_ops.running import run

ON_PROCESSORS = ("cpu", "numba")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for compiled kernels that is empty, and a process that has none."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(numba_compiler, "_loaded", {})
    return tmp_path / "cache" / "array_kernels"


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel"))


def like(*widths: int, **more: Any) -> Callable[[Any], OwnOp]:
    return op(shape=lambda x: x, samples=[sample(f32(ROWS, n)) for n in widths or (8,)], **more)


@pytest.mark.parametrize("backend", ON_PROCESSORS)
def test_an_op_and_its_fusion_mean_what_their_functions_say(softpick: OwnOp, backend: str) -> None:
    ops = load_ops_of_file(SOFTPICK)
    results = list(check_own_ops(ops, discovery.backend(backend), [1, 3]))
    assert [(one.op, one.how, len(one.failed)) for one in results] == [
        ("softpick", KERNEL, 0), ("softpick_mul", KERNEL, 0),
    ]  # fmt: skip
    runs = {verdict.case for verdict in results[0].verdicts}
    assert {"softpick/2", "softpick/0 in place", "softpick/0 of viewed operands"} <= runs
    assert {"softpick/2 of permuted operands", "softpick_mul/0"} <= runs | {"softpick_mul/0"}
    assert 0 < results[0].nmse < 1e-10
    assert results[0].max_ulp > 0
    assert all(timing.seconds > 0 for one in results for timing in one.timings)


def test_without_a_kernel_it_runs_in_numpy_and_a_fusion_is_taken_apart(softpick: OwnOp) -> None:
    for own in load_ops_of_file(SOFTPICK):
        own.kernels.clear()
    results = list(check_own_ops(load_ops_of_file(SOFTPICK), discovery.backend("cpu"), [2], timed=False))
    assert [(one.how, one.reason) for one in results] == [(NUMPY, "no kernel for softpick"), (APART, "")]
    assert not results[0].failed


PLANTED = {
    "another value": ("out[row, i] = x[row, i] * np.float32(1.01)", r"NMSE 1.0e-04, allowed"),
    "a NaN": ("out[row, i] = x[row, i] if i else np.float32(np.nan)", "NaN or infinity is not where"),
    "its operand": ("out[row, i] = x[row, i]; x[row, i] = np.float32(1)", "read-only"),
    "behind its rows": (
        "out[row + 1, i] = out[row, i] = x[row, i]",
        "rows 0 to 1 of 5: wrote out of bounds: row 1 of out",
    ),
    "all rows": ("out[:] = x", "rows 0 to 1 of 5: wrote out of bounds: row 1 of out, which another"),
    "a column too many": ("out[row, i + 1] = x[row, i]", "planted.py:.*index 8 is out of bounds"),
    "the row beside": ("out[row, i] = x[max(row - 1, 0), i]", "NMSE"),
}


@pytest.mark.parametrize("which", PLANTED)
def test_a_kernel_that_is_wrong_is_found(tmp_path: Path, which: str) -> None:
    line, said = PLANTED[which]
    file = tmp_path / "planted.py"
    file.write_text(
        textwrap.dedent("""
        import numpy as np
        from graphml.ops import ROWS, f32, op, sample

        @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
        def planted(x):
            return x

        @planted.kernel("cpu")
        def planted_rows(out, x, begin, end):
            for row in range(begin, end):
                for i in range(x.shape[1]):
                    LINE
        """).replace("LINE", line)
    )
    (result,) = check_own_ops(load_ops_of_file(file), discovery.backend("cpu"), [1], timed=False)
    assert any(re.search(said, one.problem) for one in result.failed), result.failed


def test_results_numbers_and_constants_reach_a_kernel() -> None:
    @op(
        shape=lambda x, *, k: (Type(F32, (x.shape[0], k)), Type(I32, (x.shape[0], k))),
        samples=[sample(f32(ROWS, 8), k=2)],
    )
    def scaled(
        x: Any, *, k: int, by: float = 2.0, negate: bool = False, way: str = "up",
        add: tuple[float, ...] = (0.5, 1.0),
    ) -> Any:  # fmt: skip
        sign = (-1 if negate else 1) * (1 if way == "up" else 3)
        return x[:, :k] * by * sign + add[1], np.broadcast_to(np.arange(k), (len(x), k))

    @scaled.kernel("cpu", "numba")
    def scaled_rows(
        out: Any, ids: Any, x: Any, begin: Any, end: Any, by: Any, k: Any, negate: Any, way: Any, add: Any
    ) -> None:
        for row in range(begin, end):
            for i in range(k):
                value = x[row, i] * by
                if negate:
                    value = -value
                if way != "up":
                    value = value * np.float32(3)
                out[row, i] = value + np.float32(add[1])
                ids[row, i] = i

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    for given in ({}, {"by": 0.25, "negate": True}, {"way": "down", "add": (0.0, -4.0)}):
        for backend in ON_PROCESSORS:
            found, wanted = run(scaled, x, backend, k=3, **given)
            assert np.array_equal(found["r0"], wanted["r0"])
            assert np.array_equal(found["r1"], wanted["r1"])
            assert found["r1"].dtype == np.int32


def test_operands_are_rows_or_have_their_own_shape() -> None:
    @op(
        shape=lambda x, weight, ids: x, dtypes={"ids": I32},
        samples=[sample(f32(ROWS, 3, 8), f32(3, 8), i32(ROWS), fill={2: below(3)})],
    )  # fmt: skip
    def weighted(x: Any, weight: Any, ids: Any) -> Any:
        return x * weight[ids][:, None]

    @weighted.kernel("cpu", "numba")
    def weighted_rows(out: Any, x: Any, weight: Any, ids: Any, begin: Any, end: Any) -> None:
        for row in range(begin, end):  # of 3 in each token
            for i in range(x.shape[1]):
                out[row, i] = x[row, i] * weight[ids[row // weight.shape[0]], i]

    for backend in ON_PROCESSORS:
        (result,) = check_own_ops([weighted], discovery.backend(backend), [1, 3], timed=False)
        assert (result.how, result.failed) == (KERNEL, ())


def test_bits_are_the_same_on_any_number_of_threads(softpick: OwnOp) -> None:
    x = np.random.default_rng(0).standard_normal((37, 70)).astype(np.float32)
    first, _ = run(softpick, x, threads=1)
    for threads in (2, 5):
        again, _ = run(softpick, x, threads=threads)
        assert np.array_equal(first["r0"], again["r0"])
    alone, _ = run(softpick, x[5:6])
    assert np.array_equal(first["r0"][5:6], alone["r0"])


K = "def k(out, x, begin, end):\n    "


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (
            "def k(out, x, begin, end, eps): pass",
            "the parameters out, x, begin, end, eps; wanted out, x, begin",
        ),
        (
            "def k(out, y, begin, end): pass",
            "the parameters out, y, begin, end; wanted out, x, begin, end",
        ),
        ("def k(x, begin, end): pass", "has the parameters x, begin, end; wanted out, x, begin, end"),
        ("def k(out, x): pass", r"mine.py:11: kernel k\(out, x\): wanted the results and the operands, then"),
        (K + "raise ValueError", r"mine.py:13: k has a raise or assert"),
        (K + "helper(1)\ndef helper(n):\n    assert n", r"mine.py:15: helper has a raise or assert"),
        (K + "out[0, 0] = {}[x]", r"cannot be compiled: .*mine.py:13: `out\[0, 0\] = {}\[x\]`: Cannot infer"),
        (K + "out[0, 0] = nobody(x)", r"cannot be compiled: .*mine.py:.*name 'nobody' is not defined"),
        (K + "open('x')", r"cannot be compiled: .*mine.py:13: `open\('x'\)`"),
    ],
)
def test_what_cannot_be_a_kernel_is_refused_with_its_line(tmp_path: Path, kernel: str, said: str) -> None:
    file = tmp_path / "mine.py"
    head = (
        "import numpy as np\nfrom graphml.ops import ROWS, f32, op, sample\n\n\n"
        "@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])\ndef mine(x):\n    return x\n\n\n\n"
    )
    file.write_text(f'{head}@mine.kernel("cpu")\n{kernel}\n')
    (mine,) = load_ops_of_file(file)
    with pytest.raises(BackendError, match=rf"(?s){said}"):
        run(mine, np.ones((2, 8), np.float32))


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (None, {"fastmth": True}, r"no option 'fastmth'; wanted some of whole, .*\. Did you mean 'fastmath'"),
        (None, {"parallel": True}, "no option 'parallel'"),
        (None, {"locals": {"q": 1}}, "no option 'locals'"),
        (None, {"fastmath": {"q": 1}}, "fastmath: wanted True, False, a name or a set of names; got"),
        (None, {"whole": "x"}, "whole: wanted operands in a tuple, of .*; got 'x'"),
        (None, {"whole": ("y",)}, r"whole: wanted operands in a tuple, of \('x',\)"),
        (None, {"fastmath": {"q"}}, "kernel mine cannot be compiled: .*test_kernels.py:.*: .*q"),
        ("a text", {}, r"wanted a function `\(out, ..., begin, end, ...\)`, made by `def`; got 'a text'"),
        (functools.partial(lambda out, x, begin, end: None), {}, "wanted a function"),
        (lambda out, x, begin, end, *more: None, {}, "parameter .more: wanted plain parameters"),
        (lambda out, x, begin, end, *, eps: None, {}, "parameter eps: wanted plain parameters"),
    ],
)
def test_wrong_functions_and_options_are_refused(function: Any, options: dict[str, Any], said: str) -> None:
    def copied(out: Any, x: Any, begin: Any, end: Any) -> None:
        for row in range(begin, end):
            for i in range(x.shape[1]):
                out[row, i] = x[row, i]

    @like()
    def mine(x: Any, *, eps: float = 1.0) -> Any:
        return x

    mine.kernel("cpu", **options)(function or copied)
    named = r"op 'mine' \(.*test_kernels.py:\d+\): its kernel for cpu: .*"
    with pytest.raises(BackendError, match=said if said.startswith("kernel") else named + said):
        run(mine, np.ones((2, 8), np.float32))


def test_without_numba_it_runs_in_numpy(softpick: OwnOp, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "numba" else find(name, *more)
    )
    (result, _) = check_own_ops(load_ops_of_file(SOFTPICK), discovery.backend("cpu"), [1], timed=False)
    assert result.how == NUMPY
    assert "needs numba; in a clone of graphml: pip install '.[numba]'" in result.reason
    reason = discovery.backend("numba").unavailable()
    assert reason is not None
    assert "numba is not installed" in reason


# --- what is kept on disk


HELPED = """
import numpy as np
from graphml.ops import ROWS, f32, op, sample

FACTOR = 2.0

def helper(x):
    return x * np.float32(FACTOR)

@op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
def helped(x):
    return helper(x)

@helped.kernel("cpu")
def helped_rows(out, x, begin, end):
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = helper(x[row, i])
"""


def helped(folder: Path, text: str = HELPED) -> OwnOp:
    file = folder / "helped.py"
    file.write_text(text)
    return load_ops_of_file(file)[0]


X = np.arange(16, dtype=np.float32).reshape(2, 8)


def test_a_kept_kernel_is_not_compiled_again(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = run(helped(tmp_path), X)
    assert len(kept(own_cache)) == 1
    numba_compiler._loaded.clear()
    monkeypatch.setattr(numba_compiler, "_compiled", lambda *given: pytest.fail("compiled again"))
    again, _ = run(helped(tmp_path, HELPED + "\n# a remark\n"), X)
    assert np.array_equal(found["r0"], again["r0"])


@pytest.mark.parametrize(
    "change", [("FACTOR = 2.0", "FACTOR = 3.0"), ("return x *", "return np.float32(1) + x *")]
)
def test_a_change_in_what_a_kernel_calls_or_reads_compiles_it_anew(
    tmp_path: Path, own_cache: Path, change: tuple[str, str]
) -> None:
    run(helped(tmp_path), X)
    found, wanted = run(helped(tmp_path, HELPED.replace(*change)), X)
    assert np.array_equal(found["r0"], wanted["r0"])
    assert not np.array_equal(found["r0"], X * 2)
    assert len(kept(own_cache)) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b'{"key": 1}\nxx', None])
def test_a_damaged_file_is_compiled_anew(tmp_path: Path, own_cache: Path, damage: bytes | None) -> None:
    own = helped(tmp_path)
    run(own, X)
    (file,) = kept(own_cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:-40] + whole[-39:] if damage is None else damage)
    numba_compiler._loaded.clear()
    found, _ = run(own, X)
    assert np.array_equal(found["r0"], X * 2)


def test_code_that_others_could_write_is_not_loaded(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = helped(tmp_path)
    run(own, X)
    (file,) = kept(own_cache)
    file.chmod(0o666)
    numba_compiler._loaded.clear()
    compiled = []
    real = numba_compiler._compiled
    monkeypatch.setattr(numba_compiler, "_compiled", lambda *given: compiled.append(1) or real(*given))
    run(own, X)
    assert compiled
    own_cache.chmod(0o777)
    numba_compiler._loaded.clear()
    run(own, X)
    assert len(compiled) == 2
