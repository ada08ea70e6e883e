"""The conformance suite on every installed backend, a few ops at a time: what `graphml test-backend` runs.

An op, a fusion, a weight format or a backend that is added is tested here unasked; what has no kernel runs in
NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from graphml.backend import Backend, Device, on_device
from graphml.conformance import networks, suite
from graphml.conformance.cases import Case, multiplies
from graphml.conformance.fill import may_be_special
from graphml.conformance.verdict import Verdict
from graphml.errors import BackendError
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.dtype import dtype
from graphml.ir.ops.leaf import LEAVES
from graphml.loading import discovery
from graphml.passes.fusion import all_ops
from tests.backend_pairs import GPUS, TURNS

BACKENDS = discovery.backend_names()
# A kernel is compiled for each format, which takes the CPU 0.3 s and OpenCL a second: formats differ in their
# readers alone, and tests/cpu and tests/gpu look at each of these.
QUICK = ("cpu", "reference")
TILED = ("f32", "q4_0")
FEW = ("f32", "f16", "q6_k", "q4_0", "q8_1")
# Keys and values are read by readers of their own; tests/gpu/test_gpu_attention.py has each on each device.
PAIRS = ("f16/f32", "q8_0/q5_1", "q4_0/iq4_nl")
CACHES_ON_GPUS = (TILED[0], "f16")
# What a sample runs with the optimiser of OpenCL's compiler: the first case of ops, all cases of some.
OPTIMISED = ("attention", "recurrent", "reduce", "norm", "linear", "fused", "index")
MORE, ALL = {"max_bias", "window", "softcap"}, ("gated_delta_net", "minimum", "maximum", "clamp")
# Both GPUs run the same kernels: a case is tried on one of them, in turn, the first of an op on both, and
# attention, whose kernels differ where there are subgroups.


def backend_of(name: str) -> Backend:
    """The backend; the test is skipped where it cannot be used, and says what is missing."""
    try:
        backend = discovery.backend(name)
    except BackendError as error:
        pytest.skip(str(error))
    reason = backend.unavailable()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return backend


@cache
def cases_of(name: str) -> list[Case]:
    try:
        return suite.chosen(discovery.backend(name))
    except BackendError:
        return []


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Device]]:
    """One device of each backend for all tests of ops."""
    opened: dict[str, Device] = {}
    yield opened
    for device in opened.values():
        device.close()


@pytest.fixture(scope="module")
def optimising() -> Iterator[dict[str, Device]]:
    """The same for networks and a sample of ops, with OpenCL's compiler as users have it: it optimises."""
    opened: dict[str, Device] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRAPHML_OPENCL_OPTIONS", raising=False)
        yield opened
    for device in opened.values():
        device.close()


def device_of(name: str, devices: dict[str, Device]) -> Device:
    if name not in devices:
        devices[name] = backend_of(name).open(2)
    return devices[name]


def cases_on(device: Device, name: str, ops: str) -> list[Case]:
    """The cases of some ops, with the activations that the device converts."""
    return [case for case in suite.chosen(on_device(backend_of(name), device), ops) if is_turn_of(name, case)]


def is_turn_of(name: str, case: Case) -> bool:
    """Whether a backend is tried with a case: GPUs take turns if both are there."""
    if not set(GPUS) <= set(_usable()) or name not in GPUS or case.op.name == "attention":
        return True
    first = case.number == 0 and case.format in ("f32", FEW[-1])
    number = case.number + (case.inplace >= 0) + sum(case.format.encode())
    return first or TURNS[number % len(TURNS)] == name


@cache
def _usable() -> list[str]:
    return [name for name in BACKENDS if discovery.backend(name).unavailable() is None]


def test_each_case_meets_a_gpu_and_each_op_both() -> None:
    if not set(GPUS) <= set(_usable()):
        pytest.skip("there are not both")
    met = {name: {case.name for case in cases_of(name) if is_turn_of(name, case)} for name in GPUS}
    assert met["opencl"] | met["wgpu"] == {case.name for case in cases_of("wgpu")}
    ops = {name: {case.split("/")[0] for case in found} for name, found in met.items()}
    assert ops["opencl"] == ops["wgpu"]


def sizes_of(name: str, case: Case) -> tuple[int, ...]:
    """For which numbers of tokens a case is run: where kernels are compiled most formats meet one product.

    One token and several have kernels of their own for attention. On a GPU a sample meets one of them, in
    turn, on the other GPU the other: which positions a token sees, and what becomes of a score, functions say
    that all of them call. tests/gpu/test_gpu_attention.py has most forms with few tokens and with many.
    """
    every = suite.sizes_of(case)
    if name not in QUICK and "from_dtype" in case.op.attributes and case.format not in FEW:
        return ()
    tiled = case.format in TILED and (case.number == 0 or case.op.family != "attention")
    if suite.MANY in every and name != "reference" and not tiled:
        every = every[:2]
    if case.format == "f32" and case.op.name == "attention" and name in GPUS and case.number:
        return every[(case.number + GPUS.index(name)) % 2 :][:1]
    if case.format == "f32":
        return every
    if case.op.name == "attention":
        kept = case.format in (PAIRS if "/" in case.format else CACHE_DTYPES)
        kept = kept and (name in QUICK or case.format in CACHES_ON_GPUS)
        return every[:2] if case.number == 0 and kept else ()
    plain = case.op.name.startswith("linear") if name in QUICK else case.op.name in ("linear", "linear_id")
    if not multiplies(case.op) or case.format in (FEW if plain else FEW[-2:]):
        return every
    return every[:1] if case.op.name == "linear" and len(case.sample.inputs) == 4 else ()


def ops_of(name: str) -> list[str]:
    """Names of ops with commas between them, as `--op` takes them: ops in a string share programs."""
    some = [case for case in cases_of(name) if is_turn_of(name, case)]
    return [",".join(dict.fromkeys(case.op.name for case in window)) for window in suite.windows(some)]


@pytest.mark.parametrize(("name", "ops"), [(name, ops) for name in BACKENDS for ops in ops_of(name) or ("",)])
def test_ops_mean_the_same_everywhere(name: str, ops: str, devices: dict[str, Device]) -> None:
    backend = backend_of(name)
    some = cases_on(device_of(name, devices), name, ops)
    found: list[Verdict] = []
    for size in suite.RUNS:
        sized = [case for case in some if size in sizes_of(name, case)]
        found += suite.check(backend, device_of(name, devices), sized, sizes=[size])
    assert {verdict.op for verdict in found} == set(ops.split(","))
    assert not [str(verdict) for verdict in found if verdict.failed]


def test_a_sample_of_ops_means_the_same_with_the_optimiser(optimising: dict[str, Device]) -> None:
    """Of ops whose kernels have barriers, and of those that it once made wrong."""
    first: dict[str, Case] = {}
    for case in suite.chosen(backend_of("opencl"), formats=["f32"]):
        if case.inplace < 0 and (case.op.family in OPTIMISED or case.op.name in ALL):
            name = case.name if MORE & set(case.sample.attributes) or case.op.name in ALL else case.op.name
            first.setdefault(name, case)
    device = device_of("opencl", optimising)
    found = list(suite.check(backend_of("opencl"), device, list(first.values()), sizes=[suite.FEW]))
    assert {verdict.op for verdict in found} >= {"attention", "linear", "gated_delta_net", "minimum"}
    assert not [str(verdict) for verdict in found if verdict.failed]


@pytest.mark.parametrize(
    ("name", "network"),
    [
        (name, one)
        for name in BACKENDS
        for one in (networks.NETWORKS if name in QUICK else networks.NETWORKS[1 + 3 * (name == "wgpu") :: 6])
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_networks_mean_the_same_everywhere(
    name: str, network: networks.Network, optimising: dict[str, Device]
) -> None:
    verdict = networks.check_one(network, backend_of(name), device_of(name, optimising))
    assert not verdict.failed, str(verdict)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_no_op_format_or_kind_of_run_is_left_out(name: str) -> None:
    """The suite finds its cases by rules: this says what the rules must find."""
    found = cases_of(name)
    backend = discovery.backend(name)
    ops = {op for op, value in all_ops().items() if value not in LEAVES and value.samples()}
    assert {case.op.name for case in found} == {
        op for op in ops if all_ops()[op].decompose is None or op in backend.fused
    }
    weights = {case.op.name: set[str]() for case in found}
    for case in found:
        weights[case.op.name].add(case.format)
    for op in ("linear", "linears", "linear_id", "mul_mat_glu", "get_rows", "dequantize"):
        assert len(weights[op]) >= 28, op
    pairs = {kind for kind in weights["attention"] if "/" in kind}
    for place in (0, 1):  # keys and values of different types
        assert {pair.split("/")[place] for pair in pairs} == set(CACHE_DTYPES)
    assert weights["attention"] - pairs == set(CACHE_DTYPES)
    for op in ("relative_attention", "set_rows", "rope_set_rows"):
        assert weights[op] == set(CACHE_DTYPES)
    converted = {case.format for case in found if case.weight}
    assert converted == {
        kind.name for one in weights["linear"] if (kind := backend.activation(dtype(one))) and kind.is_format
    } - {"q8_k"}  # no sample is as wide as its blocks
    assert sum(case.inplace >= 0 for case in found) > 20
    assert sum(may_be_special(case) for case in found) > 200
