"""The functions that both target languages have: what each is called there and in the emulator.

`{0}`, `{1}`, ... stand for the arguments, `{type}` for the result's type in that language. Functions that need
more than a call, and those made from others, are in `calls` and `helpers`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intrinsic:
    """A function of values of one type, with a result of that type or of `result`.

    kinds: "float" or "number" (integers too); n: how many arguments. opencl_integer: its form for integers.
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


_INFINITY = "0x7f800000u"

_TABLE = (
    _same("exp"),
    _same("exp2"),
    _same("log"),
    _same("log2"),
    _same("sin"),
    _same("cos"),
    _same("tanh"),
    _same("sqrt"),
    _same("inverse_sqrt", opencl="rsqrt({0})", wgsl="inverseSqrt({0})"),
    _same("floor"),
    _same("ceil"),
    _same("trunc"),
    _same("round", opencl="rint({0})"),
    _same("pow", 2),
    _same("fma", 3),
    Intrinsic("abs", 1, "number", "abs({0})", "fabs({0})", "abs({0})", opencl_integer="convert_{type}(abs({0}))"),
    Intrinsic("min", 2, "number", "min({0}, {1})", "fmin({0}, {1})", "rt.min({0}, {1})", opencl_integer="min({0}, {1})"),
    Intrinsic("max", 2, "number", "max({0}, {1})", "fmax({0}, {1})", "rt.max({0}, {1})", opencl_integer="max({0}, {1})"),
    Intrinsic("clamp", 3, "number", "clamp({0}, {1}, {2})", "clamp({0}, {1}, {2})", "rt.clamp({0}, {1}, {2})", opencl_integer="clamp({0}, {1}, {2})"),
    Intrinsic("dot", 2, "float", "dot({0}, {1})", "dot({0}, {1})", "rt.dot({0}, {1})", result="lane"),
    Intrinsic("isnan", 1, "float", f"((bitcast<u32>({{0}}) & 0x7fffffffu) > {_INFINITY})", "(isnan({0}) != 0)", "rt.isnan({0})", result="bool"),
    Intrinsic("isinf", 1, "float", f"((bitcast<u32>({{0}}) & 0x7fffffffu) == {_INFINITY})", "(isinf({0}) != 0)", "rt.isinf({0})", result="bool"),
    Intrinsic("count_bits", 1, "integer", "countOneBits({0})", "popcount({0})", "rt.count_bits({0})", opencl_integer="popcount({0})"),
)  # fmt: skip

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
inline float2 unpack_half2(uint bits) {
    return vload_half2(0, (const __private half *)&bits);
}
""",
    "pack_half2": """\
inline uint pack_half2(float2 values) {
    uint bits;
    vstore_half2_rte(values, 0, (__private half *)&bits);
    return bits;
}
""",
}
"""What a text in OpenCL C begins with where it uses these."""
