"""What a kernel gets wrong is said with the kernel, the file and line, what was wanted and what came."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphml_gpu.language import (
    Kernel,
    Read,
    Update,
    Write,
    barrier,
    debug_print,
    exp,
    f16,
    f32,
    function,
    i32,
    kernel,
    local_id,
    private_array,
    shared_array,
    u32,
    uniform,
    unroll,
)

from graphml.errors import BackendError


@function
def half_of(x: f32) -> f32:
    return x / 2


@function
def calls_itself(x: f32) -> f32:
    return calls_itself(x) + 1.0


def outside(x: float) -> float:
    return x


def two_types(x: Read[f32], n: u32, out: Write[f32]) -> None:
    """Argument order."""


def mixed(x: Read[f32], out: Write[f32], n: u32) -> None:
    out[0] = x[0] + n  # LINE


def integer_division(out: Write[u32], n: u32) -> None:
    out[0] = n / 2  # type: ignore[call-overload] # LINE


def divides_by_nothing(out: Write[i32], n: i32) -> None:
    out[0] = n % 0  # LINE


def wrong_store(out: Write[f32], n: u32) -> None:
    out[0] = n  # LINE


def reads_write(out: Write[f32]) -> None:
    out[0] = out[1]  # type: ignore[index] # LINE


def writes_read(x: Read[f32]) -> None:
    x[0] = 1.0  # type: ignore[index] # LINE


def unknown_name(out: Write[f32]) -> None:
    out[0] = nothing_of_the_kind  # type: ignore[name-defined]  # noqa: F821  # LINE


def after_loop(out: Write[u32], n: u32) -> None:
    for i in range(n):
        out[i] = i
    out[0] = i  # LINE


def counts_itself(out: Write[u32], n: u32) -> None:
    for i in range(n):
        i += 1  # LINE
        out[i] = i


def not_a_function(out: Write[f32], n: u32) -> None:
    out[0] = outside(f32(n))  # LINE


def recursion(out: Write[f32], n: u32) -> None:
    out[0] = calls_itself(f32(n))


def not_decided(out: Write[f32], n: u32) -> None:
    for i in unroll(n):  # LINE
        out[i] = 0.0


def out_of_bounds(out: Write[f32]) -> None:
    few = private_array(f32, 4)
    out[0] = few[4]  # LINE


def negative(out: Write[u32], n: u32) -> None:
    out[0] = n + -1  # LINE


def too_large(out: Write[f32]) -> None:
    out[0] = 1e39  # LINE


def not_bool(out: Write[u32], n: u32) -> None:
    if n:  # LINE
        out[0] = 1


def integers_only(out: Write[f32], n: u32) -> None:
    out[0] = exp(n)  # LINE


def statement(out: Write[f32]) -> None:
    with pytest.raises(BackendError):  # LINE
        out[0] = 1.0


def breaks_unrolled(out: Write[f32], n: u32) -> None:
    for i in unroll(4):
        if n == i:
            break  # LINE


def asserts(out: Write[f32], *, WIDTH: int = 3) -> None:
    assert WIDTH % 2 == 0, f"WIDTH: wanted an even number, got {WIDTH}"  # LINE
    out[0] = 1.0


def changes_type(out: Write[f32], n: u32) -> None:
    total = 0.0
    total = n  # LINE
    out[0] = total


def wrong_argument(out: Write[f32], n: u32) -> None:
    out[0] = half_of(n)  # LINE


def reserved(x: Read[f32], kernel: u32) -> None:
    """A word of OpenCL C."""


def array_size(out: Write[f32], n: u32) -> None:
    some = shared_array(f32, n)  # LINE
    out[0] = some[0]


def uniform_bool(out: Write[u32], n: u32, *, GROUP: int = 2) -> None:
    if uniform(n > 2):  # LINE
        out[0] = 1


def no_lane(out: Write[f32], n: u32) -> None:
    out[0] = f32(n).x  # type: ignore[attr-defined] # LINE


CASES: dict[Callable[..., None], str] = {
    two_types: "argument `out`: wanted buffers .* then scalars",
    mixed: "`+`: wanted values of one type, got f32 and u32",
    integer_division: "`/`: wanted floats, got u32; use `//`",
    divides_by_nothing: "`%`: wanted a divisor other than 0",
    wrong_store: "element of `out`: wanted f32, got u32",
    reads_write: "`out` is Write: it cannot be read; wanted Update",
    writes_read: "`x` is Read: it cannot be written; wanted Write or Update",
    unknown_name: "`nothing_of_the_kind` is not known",
    after_loop: "`i` has no value here",
    counts_itself: "`i` counts a loop and cannot be assigned",
    not_a_function: "`outside` is not a function of the language",
    recursion: "calls itself",
    not_decided: "wanted int known when compiling, got u32 known at run time",
    out_of_bounds: "index of `few`: wanted 0 to 3, got 4",
    negative: "wanted u32, got the constant -1",
    too_large: "wanted f32, got the constant 1e+39",
    not_bool: "condition `n`: wanted bool, got u32",
    integers_only: "exp(): wanted floats, got u32",
    statement: "a kernel has no such statement: `with pytest",
    breaks_unrolled: "`break` cannot leave an unrolled loop",
    asserts: "WIDTH: wanted an even number, got 3",
    changes_type: "`total`: wanted f32, got u32",
    wrong_argument: "argument `x` of half_of(): wanted f32, got u32",
    reserved: "argument `kernel`: a word of WGSL, OpenCL C or Python",
    array_size: "length of shared_array(): wanted int known when compiling",
    uniform_bool: "uniform(): wanted a number, got bool",
    no_lane: "f32 has no lane 0",
}


def _line(python: Callable[..., None]) -> int:
    lines, first = inspect.getsourcelines(python)
    return first + next((i for i, line in enumerate(lines) if "LINE" in line), 0)


@pytest.mark.parametrize("python", CASES, ids=lambda python: python.__name__)
def test_an_error_says_where_and_what_was_wanted(python: Callable[..., None]) -> None:
    with pytest.raises(BackendError) as raised:
        kernel(python).specialise()
    text = str(raised.value)
    pattern = re.escape(CASES[python]).replace(r"\.\*", ".*")
    assert re.search(pattern, text), text
    if "LINE" in inspect.getsource(python):
        assert text.startswith(f"kernel {python.__name__}, test_language_errors.py:{_line(python)}: "), text


def test_an_error_in_a_function_names_both_lines() -> None:
    @kernel
    def halves(out: Write[f32], n: u32) -> None:
        out[0] = quotient(n)

    with pytest.raises(BackendError, match=r"kernel halves, test_\w+.py:\d+ \(called from test_\w+.py:\d+\)"):
        halves.specialise()


@function
def quotient(n: u32) -> f32:
    return n / 2


@kernel
def fill(out: Write[f32], n: u32, *, VALUE: float, GROUP: int = 8) -> None:
    out[local_id(0)] = VALUE


@pytest.mark.parametrize(
    ("constants", "wanted"),
    [
        ({}, "wanted values for its constants VALUE"),
        ({"VALUE": 1.0, "GRUOP": 3}, "has no constant GRUOP; it has VALUE, GROUP"),
        ({"VALUE": 1.0, "GROUP": 0}, "wanted a workgroup of 1 to 1024 invocations, got (0, 1, 1)"),
        ({"VALUE": "text"}, "element of `out`: wanted f32, got 'text'"),
    ],
)
def test_constants_are_checked(constants: dict[str, Any], wanted: str) -> None:
    with pytest.raises(BackendError, match=re.escape(wanted)):
        fill.specialise(**constants)


def test_a_specialisation_is_made_once() -> None:
    assert fill.specialise(VALUE=1.0) is fill.specialise(VALUE=1.0)
    assert fill.specialise(VALUE=1.0) is not fill.specialise(VALUE=2.0)
    with pytest.raises(BackendError, match="got the constant True"):
        fill.specialise(VALUE=True)  # though it equals 1.0


def test_kernels_and_functions_cannot_be_called() -> None:
    for python in (half_of, exp):
        with pytest.raises(TypeError, match="is a function of the kernel language"):
            python(1.0)


def _run(made: Kernel, group: int, **buffers: Any) -> None:
    made.specialise(GROUP=group).run_python(buffers, {}, (1, 1, 1))


@kernel
def races(x: Read[i32], out: Write[i32], *, GROUP: int = 4) -> None:
    some = shared_array(i32, GROUP)
    some[local_id(0)] = x[local_id(0)]
    out[local_id(0)] = some[(local_id(0) + GROUP - 1) % GROUP]


@kernel
def waits_alone(x: Read[i32], out: Write[i32], *, GROUP: int = 4) -> None:
    if local_id(0) < 2:
        barrier()
    out[local_id(0)] = x[local_id(0)]


@kernel
def reaches_beyond(x: Read[i32], out: Update[i32], *, GROUP: int = 4) -> None:
    out[local_id(0)] = x[local_id(0) + 1]


@kernel
def differs(x: Read[i32], out: Write[i32], *, GROUP: int = 4) -> None:
    out[local_id(0)] = uniform(x[local_id(0) // 2])


@kernel
def told_to_some(x: Read[i32], out: Write[i32], *, GROUP: int = 4) -> None:
    if local_id(0) > 0:
        out[local_id(0)] = uniform(x[0])


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (
            races,
            r"kernel races, invocation 1: `some` \[0\] was written by invocation 0, with no barrier since",
        ),
        (
            waits_alone,
            r"not all invocations reach the barrier at test_language_errors.py:\d+; ended: \[2, 3\]",
        ),
        (reaches_beyond, r"kernel reaches_beyond, invocation 3: `x` has 4 elements, none at 4"),
        (
            differs,
            r"value of uniform\(\) at test_language_errors.py:\d+: invocation 0 has 0, invocation 2 has 1",
        ),
        (
            told_to_some,
            r"not all invocations reach uniform\(\) at test_language_errors.py:\d+; ended: \[0\]",
        ),
    ],
    ids=["race", "barrier", "bounds", "uniform", "uniform for some"],
)
def test_the_emulator_finds_what_a_device_would_not(made: Kernel, wanted: str) -> None:
    with pytest.raises(BackendError, match=wanted):
        _run(made, 4, x=np.arange(4, dtype=np.int32), out=np.zeros(4, np.int32))


def test_halves_are_written_in_pairs_where_wgsl_has_none() -> None:
    @kernel
    def stores(out: Write[f16]) -> None:
        out[0] = f16(1.0)

    with pytest.raises(BackendError, match="written as f16; without the feature f16 WGSL writes f16x2 only"):
        stores.specialise().wgsl()
    assert "vstore_half_rte" in stores.specialise().opencl()


@kernel
def shows(x: Read[i32], out: Write[i32], *, GROUP: int = 2) -> None:
    debug_print("x is", x[local_id(0)])
    out[local_id(0)] = x[local_id(0)]


def test_what_a_kernel_prints_is_shown_by_the_emulator_alone(capsys: pytest.CaptureFixture[str]) -> None:
    _run(shows, 2, x=np.array([4, 5], np.int32), out=np.zeros(2, np.int32))
    shown = capsys.readouterr()
    assert shown.err == (
        "group (0, 0, 0) invocation (0, 0, 0): x is 4\ngroup (0, 0, 0) invocation (1, 0, 0): x is 5\n"
    )
    assert "x is" not in shows.specialise().wgsl() + shows.specialise().opencl()


def test_texts_are_shown_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shows.specialise().wgsl()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GRAPHML_DEBUG", "kernels")
    text = shows.specialise().opencl()
    assert capsys.readouterr().err == text + "\n"
    assert text.startswith("// shows, GROUP = 2\n")


def test_scalars_become_the_words_of_the_struct() -> None:
    @kernel
    def takes(x: Read[f32], out: Write[f32], n: u32, shift: i32, factor: f32) -> None:
        out[n] = x[n] * factor

    specialised = takes.specialise()
    assert [scalar.name for scalar in specialised.scalars] == ["n", "shift", "factor", "x_at", "out_at"]
    words = specialised.words({"n": 7, "shift": -2, "factor": 1.5, "out_at": 64})
    assert words.tolist() == [7, 2**32 - 2, 0x3FC00000, 0, 64]
