"""Faults planted in the toy backend of the tutorial: the conformance suite finds each and says what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from graphml_cpu import BACKEND as CPU
from graphml_reference import BACKEND as REFERENCE
from typer.testing import CliRunner, Result

from graphml.cli.main import app
from graphml.conformance import networks, perf, suite
from graphml.conformance.cases import Case
from graphml.conformance.suite import APART, NATIVE, NUMPY, apart, support
from graphml.conformance.trial import Trial, TrialRun, grown, may_grow
from graphml.conformance.verdict import Verdict, judge
from graphml.errors import BackendError
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.op import Op
from graphml.ir.ops.elementwise import gelu_erf
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.reduce import sum_rows
from graphml.loading import discovery
from tests.docs.pages import ROOT, blocks
from tests.inspect import faults

PAGE = ROOT / "docs" / "tutorial-a-backend.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The tutorial's toy, with its two faults."""
    (code,) = [block.text for block in blocks(PAGE) if block.said("file") == "toy.py"]
    path = tmp_path / "toy.py"
    path.write_text(code)
    return path


@pytest.fixture
def toy(file: Path) -> ModuleType:
    """The toy as a module, its faults mended."""
    module = ModuleType("toy")
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    module.KERNELS["relu"] = lambda out, x: put(out, np.maximum(x, 0))
    module.KERNELS["scale"] = lambda out, x, factor, offset: put(out, x * np.float32(factor) + offset)
    return module


def put(out: Any, values: Any) -> None:
    out[: values.size] = values.ravel()


def behind(x: Any) -> Any:
    """The number behind an operand."""
    return np.lib.stride_tricks.as_strided(x, (x.size + 1,), (x.itemsize,))[-1]


def cleared_first(out: Any, a: Any, b: Any) -> None:
    """Right unless the result takes the place of an operand."""
    out[: a.size] = 0
    put(out, a + b)


def failures(toy: ModuleType, ops: str = "add,relu,rms_norm,scale", limits: str = "graphml") -> list[Verdict]:
    device = toy.BACKEND.open(None)
    return [v for v in suite.check(toy.BACKEND, device, suite.chosen(toy.BACKEND, ops), limits) if v.failed]


def test_the_suite_passes_without_a_fault(toy: ModuleType) -> None:
    """All ops are run on the toy by the tutorial itself, in tests/docs/test_docs.py."""
    assert not failures(toy)
    assert not [str(v) for v in networks.check(toy.BACKEND, toy.BACKEND.open(None)) if v.failed]


FAULTS: dict[str, tuple[str, Callable[..., None], str]] = {
    "wrong result": (
        "relu", lambda out, x: put(out, np.maximum(x, 0) * np.float32(1.00001)), "NMSE 1.*e-10, allowed 1e-12"
    ),
    "one wrong element": (
        "relu", lambda out, x: put(out, np.maximum(x - (np.arange(x.shape[-1]) == 6), 0)),
        "columns 6 of 7; worst",
    ),
    "NaN lost": (
        "relu", lambda out, x: put(out, np.nan_to_num(np.maximum(x, 0), nan=0.5, posinf=np.inf)),
        "NaN or infinity is not where.*: 0.5, wanted nan",
    ),
    "NaN leaks into other rows": (
        "relu", lambda out, x: put(out, np.maximum(x, 0) + 0 * x.reshape(-1)[0]), "NaN or infinity is not"
    ),
    "infinity lost": (
        "relu", lambda out, x: put(out, np.minimum(np.maximum(x, 0), 1e30)), r": 1e\+30, wanted inf"
    ),
    "written behind the result": (
        "relu", lambda out, x: put(out, np.resize(np.maximum(x, 0), x.size + 16)),
        "wrote out of bounds: 1?[0-9] of",
    ),
    "rest of the inputs used": (
        "add", lambda out, a, b: put(out, a + b + 0 * behind(a)), "NaN or infinity"
    ),
    "operand changed": (
        "add", lambda out, a, b: (put(out, a + b), a.fill(0))[0], "operand 0 was changed"
    ),
    "weight changed": (
        "add", lambda out, a, b: (put(out, a + b), b.fill(0))[0], "weight 1 or the bytes around"
    ),
    "wrong in place": (
        "add", cleared_first, "add/0 in place: .* NMSE"
    ),
    "exception": (
        "add", lambda out, a, b: put(out, a + b.reshape(a.shape)), "ValueError: cannot reshape"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_in_its_op_alone(toy: ModuleType, fault: str) -> None:
    op, kernel, wanted = FAULTS[fault]
    toy.KERNELS[op] = kernel
    found = failures(toy)
    assert {verdict.op for verdict in found} == {op}
    texts = [str(verdict) for verdict in found]
    assert any(re.search(wanted, text) for text in texts), texts
    assert all(f"{op}(f32[" in text and ", T=" in text for text in texts)


def test_small_errors_are_allowed_by_the_limits_of_ggml(toy: ModuleType) -> None:
    toy.KERNELS["relu"] = lambda out, x: put(out, np.maximum(x, 0) * np.float32(1.0001))
    assert failures(toy, "relu")
    assert not failures(toy, "relu", "ggml")


def test_a_network_finds_it_too(toy: ModuleType) -> None:
    toy.KERNELS["add"] = cleared_first
    verdict = networks.check_one(networks.NETWORKS[0], toy.BACKEND, toy.BACKEND.open(None))
    assert re.search("step 0 of 9 tokens of at most 12: logits: NMSE", str(verdict)), str(verdict)


def test_worst_elements() -> None:
    wanted = np.array([[1.0, 2.0], [np.nan, np.inf]], np.float32)
    assert judge(wanted.copy(), wanted, 0.0) == (0.0, "")
    off = np.array([[1.0, 2.5], [np.nan, np.inf]], np.float32)
    assert "worst at [0, 1]: 2.5, wanted 2" in judge(off, wanted, 1e-3)[1]
    other = np.array([[1.0, 2.0], [np.nan, -np.inf]], np.float32)
    assert "worst at [1, 1]: -inf, wanted inf" in judge(other, wanted, 1e-3)[1]
    assert "is float32[4], wanted float32[2, 2]" in judge(wanted.ravel(), wanted, 1e-3)[1]
    assert "worst at [1]: 7, wanted 2" in judge(np.array([1, 7]), np.array([1, 2]), 1e-3)[1]


def test_support_says_why_not(toy: ModuleType) -> None:
    found = {one.op: one for one in support(toy.BACKEND, suite.chosen(toy.BACKEND))}
    assert found["relu"].how == NATIVE
    assert (found["softmax"].how, found["softmax"].reasons) == (NUMPY, ("no kernel for softmax",))
    assert {one.how for one in apart(toy.BACKEND)} == {APART}
    assert not apart(REFERENCE)


def test_times_are_of_the_size_of_models_and_rates_of_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "WIDTH", 512)
    monkeypatch.setattr(perf, "LEAST_S", 0.0)
    some = perf.perf_cases(suite.chosen(CPU, "linear,add", ["f32", "f16"]))
    assert {(case.op.name, case.format) for case in some} == {
        ("add", "f32"),
        ("linear", "f32"),
        ("linear", "f16"),
    }
    device = CPU.open(1)
    found = {(one.op, one.format, one.tokens): one for one in perf.measure(CPU, device, some)}
    device.close()
    assert len(found) == 6
    for one in found.values():
        assert one.by_device
        assert one.seconds > 0
        assert one.bytes_per_s == one.n_bytes / one.seconds
    few = found["linear", "f16", 1]
    assert few.flops == 2 * 512 * 512
    assert 2 * 512 * 512 < few.n_bytes < 2 * 512 * 512 + 20000


def test_what_runs_once_has_no_time() -> None:
    some = perf.perf_cases(suite.chosen(CPU, "dequantize", ["f32", "f16"]))
    assert [case.format for case in some] == ["f32"]


def command(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["test-backend", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_the_command_tells_failures_and_ends_with_1(file: Path) -> None:
    text = command(file, "--op", "add,relu,scale", code=1).stdout
    assert "FAIL relu/0: relu(f32[T<=5, 1]), T=5 with NaN of at most 5" in text
    assert "more of scale: --verbose" in text
    assert text.splitlines()[-1] == "toy: 64 cases, 64 native, 0 in NumPy, 23 failed"
    found = json.loads(command(file, "--op", "relu", "--json", code=1).stdout)
    assert (found["cases"], found["failed"]) == (14, 12)
    assert {verdict["op"] for verdict in found["verdicts"]} == {"relu"}
    assert command(file, "--op", "add", "-v").stdout.startswith(
        "ok   add/0: add(f32[T<=5, 1], f32[T<=5, 1]): NMSE"
    )


def test_the_command_lists_what_has_kernels() -> None:
    text = command("cpu", "--mode", "support", "--op", "linear,dequantize").stdout
    assert "no kernel for dequantize" in text
    assert "bf16, f16, f32, iq1_m, iq1_s and" in text
    found = json.loads(command("reference", "--mode", "support", "--op", "add", "--json").stdout)
    assert found["support"] == [{"op": "add", "format": "f32", "how": "native", "reasons": []}]


def test_what_cannot_be_tested_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*arguments: object, code: int = 2) -> str:
        result = command(*arguments, code=code)
        return " ".join(result.stderr.split())

    missing = replace(REFERENCE, name="far", unavailable=lambda: "there is no such device")
    monkeypatch.setattr(discovery, "backend", lambda name: missing)
    assert "backend 'far' cannot be used on this machine: there is no such device" in said(
        "far", "--op", "add", code=1
    )
    monkeypatch.undo()
    assert "no backend 'nowhere' is installed" in said("nowhere")
    assert "no case of reference has an op like 'nothing'" in said("reference", "--op", "nothing")
    assert "--mode: wanted one of test, perf, support; got 'fly'" in said("reference", "--mode", "fly")
    for op in ("dequantize", "reshape"):
        assert f"no op like '{op}' takes time in a step: views" in said(
            "reference", "--mode", "perf", "--op", op, "--type", "f16" if op == "dequantize" else "f32"
        )
    assert "--limits: wanted one of graphml, ggml; got 'none'" in said("reference", "--limits", "none")
    broken = tmp_path / "broken.py"
    for code, wanted in (("BACKEND = 1", "wanted BACKEND"), ("import nowhere", "cannot be run")):
        broken.write_text(code)
        with pytest.raises(BackendError, match=wanted):
            discovery.backend_from_file(broken)
    with pytest.raises(BackendError, match="no such file"):
        discovery.backend_from_file(tmp_path / "none.py")


@pytest.mark.parametrize(
    "op", ["rms_norm", "layer_norm", "l2_norm", "rms_norm_mul", "layer_norm_mul", "add_rms_norm",
           "rms_norm_mul_quantize"],
)  # fmt: skip
def test_an_eps_that_is_ignored_is_found(op: str) -> None:
    """Of the norms before int8, too, whose rounding hides it in rows of usual numbers."""
    device = CPU.open(1)
    some = suite.chosen(CPU, op)
    with faults.wrong_lowering(op, faults.with_arguments(eps=0.0)):
        found = [v for v in suite.check(CPU, device, some, sizes=[suite.FEW]) if v.failed]
    device.close()
    assert found
    if op == "rms_norm_mul_quantize":
        # bf16 too, where a processor multiplies it.
        cases = {verdict.case for verdict in found if verdict.nmse > 0.1}
        assert {f"{op}/3 q8_1"} <= cases <= {f"{op}/3 q8_1", f"{op}/3 bf16"}
        assert len(found) == len(cases)


def test_attention_that_is_wrong_behind_a_tile_of_positions_is_found() -> None:
    wrong = faults.off_where(lambda given, n: next(a for a in given.values() if a.dtype == np.int32) >= 64)
    device = CPU.open(1)
    some = suite.chosen(CPU, "attention", ["f32"])
    with faults.wrong_values("attention", wrong):
        found = {v.case for v in suite.check(CPU, device, some, sizes=[suite.FEW]) if v.failed}
    device.close()
    assert found == {"attention/1", "attention/10", "attention/12"}


def test_values_follow_from_the_case_alone(toy: ModuleType) -> None:
    """In any order, and with any other cases, the same numbers meet the backend."""
    some = suite.chosen(toy.BACKEND, "add,sum_rows,mul_mat,rms_norm", ["f32"])
    device = toy.BACKEND.open(None)

    def values(cases: Sequence[Case]) -> dict[tuple[str, str], bytes]:
        trial = Trial(cases, toy.BACKEND, device, "graphml", False)
        filled = trial._fill({"T": 3}, TrialRun(3))
        named = {name: name.partition(".") for name in filled if name[0].isdigit()}
        return {(cases[int(i)].name, j): filled[name].tobytes() for name, (i, _, j) in named.items()}

    at = [case.at(suite.FEW) for case in some]
    every = values(at)
    assert len({data for data in every.values() if len(data) > 16}) > len(at)
    assert values(at[::-1]) == every
    for case in at[::3]:
        assert values([case]).items() <= every.items()
    assert values(at[1::2]).items() <= every.items()


def test_a_seed_gives_other_values(toy: ModuleType) -> None:
    some = suite.chosen(toy.BACKEND, "add", ["f32"])
    case = next(one.at(suite.FEW) for one in some if "weight" in one.leaves)
    device = toy.BACKEND.open(None)
    one, other = (Trial([case], toy.BACKEND, device, "graphml", False, seed) for seed in (0, 1))
    first, second = one._fill({"T": 3}, TrialRun(3)), other._fill({"T": 3}, TrialRun(3, seed=1))
    named = [name for name in first if name[0].isdigit()]
    assert len(named) > 1
    assert not [name for name in named if np.array_equal(first[name], second[name])]


def grown_limits(op: Op, **attributes: Any) -> Callable[..., float]:
    """The limit for an op of some operands, where 1 is usual."""

    def of(*operands: Any) -> float:
        arrays = {f"{i}": np.asarray(one, np.float32) for i, one in enumerate(operands)}
        g = Builder()
        nodes = [g.input(name, F32, array.shape) for name, array in arrays.items()]
        node = g.call(op, *nodes, **attributes)
        assert node.op.reference is not None

        def compute(given: Any) -> Any:
            return {"y": node.op.reference(list(given.values()), node.attributes)}

        assert may_grow([node], 1e-9)
        return grown(1.0, compute, arrays, [node])["y"]

    return of


def test_limits_grow_where_a_sum_cancels() -> None:
    limit = grown_limits(sum_rows)
    usual = np.ones((1, 64))
    assert limit(usual) < 2
    assert limit(np.concatenate([usual, -usual[:, 1:]], 1)) > 50
    assert grown_limits(gelu_erf)([[3.0]]) < 2
    assert grown_limits(gelu_erf)([[-3.5]]) > 1e6


def test_limits_do_not_grow_for_what_has_one_rounding() -> None:
    g = Builder()
    a, b = (g.input(name, F32, (1, 4)) for name in "ab")
    assert not may_grow([g.add(a, b)], 1e-9)
    assert not may_grow([g.permute(a, 1, 0)], 1e-9)
    assert not may_grow([g.call(sum_rows, a)], float("inf"))
    assert not may_grow([g.call(quantize, g.input("c", F32, (1, 32)), dtype="q8_0")], 1e-2)


def test_a_right_sum_that_cancels_is_no_fault(toy: ModuleType) -> None:
    """Summed in float32 one by one, as a kernel may: of some seeds it is far beside its own size."""
    toy.KERNELS["sum_rows"] = lambda out, x: put(out, np.cumsum(x, -1, dtype=np.float32)[..., -1:])
    device = toy.BACKEND.open(None)
    some = suite.chosen(toy.BACKEND, "sum_rows")
    for seed in range(20):
        found = list(suite.check(toy.BACKEND, device, some, sizes=[suite.ONE], seed=seed))
        assert not [str(verdict) for verdict in found if verdict.failed]
    toy.KERNELS["sum_rows"] = lambda out, x: put(out, x[..., :-1].sum(-1, keepdims=True))
    assert failures(toy, "sum_rows")
