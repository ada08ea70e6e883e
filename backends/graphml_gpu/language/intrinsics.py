"""The functions that both target languages have: what each is called there and in the emulator.

`{0}`, `{1}`, ... stand for the arguments, `{type}` for the result's type in that language. Functions that
need more than a call, and those made from others, are in `calls` and `helpers`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intrinsic:
    """A function of values of one type, with a result of that type or of `result`.

    kinds: "float" or "number" (integers too); n: how many arguments. opencl_integer: that form for integers.
    """

    name: str
    n: int
    kinds: str
    wgsl: str
    opencl: str
    python: str
    opencl_integer: str = ""
    result: str = ""


def _same(name: str, n: int = 1, kinds: str = "float", opencl: str = "", wgsl: str = "") -> Intrinsic:
    values = ", ".join(f"{{{i}}}" for i in range(n))
    return Intrinsic(
        name, n, kinds, wgsl or f"{name}({values})", opencl or f"{name}({values})", f"rt.{name}({values})"
    )


def _number(name: str, n: int, float_name: str) -> Intrinsic:
    """A function of floats and integers, which OpenCL C calls differently."""
    values = ", ".join(f"{{{i}}}" for i in range(n))
    integer = f"{name}({values})" if name != "abs" else "convert_{type}(abs({0}))"
    return Intrinsic(
        name, n, "number", f"{name}({values})", f"{float_name}({values})", f"rt.{name}({values})", integer
    )


def _exponent(sign: str) -> str:
    """A test for what is no number, in bits: a compiler may take floats for numbers."""
    return f"((bitcast<u32>({{0}}) & 0x7fffffffu) {sign} 0x7f800000u)"


_TABLE = (
    _same("exp"),
    _same("exp2"),
    _same("log"),
    _same("log2"),
    _same("sin"),
    _same("cos"),
    _same("sqrt"),
    _same("inverse_sqrt", opencl="rsqrt({0})", wgsl="inverseSqrt({0})"),
    _same("floor"),
    _same("ceil"),
    _same("trunc"),
    _same("round", opencl="rint({0})"),
    _same("pow", 2),
    _same("fma", 3),
    _number("abs", 1, "fabs"),
    _number("min", 2, "fmin"),
    _number("max", 2, "fmax"),
    _number("clamp", 3, "clamp"),
    Intrinsic("dot", 2, "float", "dot({0}, {1})", "dot({0}, {1})", "rt.dot({0}, {1})", result="lane"),
    Intrinsic("isnan", 1, "float", _exponent(">"), "(isnan({0}) != 0)", "rt.isnan({0})", result="bool"),
    Intrinsic("isinf", 1, "float", _exponent("=="), "(isinf({0}) != 0)", "rt.isinf({0})", result="bool"),
    Intrinsic("count_bits", 1, "integer", "countOneBits({0})", "popcount({0})", "rt.count_bits({0})"),
)

INTRINSICS = {intrinsic.name: intrinsic for intrinsic in _TABLE}

CONVERSIONS = {
    "bitcast": ("bitcast<{type}>({0})", "as_{type}({0})", "rt.bitcast({0}, {type})"),
    "unpack_half2": ("unpack2x16float({0})", "unpack_half2({0})", "rt.unpack_half2({0})"),
    "pack_half2": ("pack2x16float({0})", "pack_half2({0})", "rt.pack_half2({0})"),
    "dot4_i8": (
        "({2} + dot4I8Packed({0}, {1}))",
        "({2} + dot_4x8packed_ss_int({0}, {1}))",
        "rt.dot4_i8({0}, {1}, {2})",
    ),
}
"""Functions between types: their forms in WGSL, OpenCL C and the emulator."""

OPENCL_PREAMBLE = {
    "unpack_half2": """\
static inline float2 unpack_half2(uint bits) {
    return vload_half2(0, (const __private half *)&bits);
}
""",
    "pack_half2": """\
static inline uint pack_half2(float2 values) {
    uint bits;
    vstore_half2_rte(values, 0, (__private half *)&bits);
    return bits;
}
""",
}
"""What a text in OpenCL C begins with where it uses these."""
