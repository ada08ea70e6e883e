"""Instruction-set levels: what the kernels may use, found from the host or chosen by `GRAPHML_CPU_LEVEL`.

Knows LLVM's names for processors and features; knows nothing of kernels or graphs.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from graphml import settings
from graphml.errors import BackendError
from graphml_cpu import processors


@dataclass(frozen=True)
class Level:
    """One instruction set that kernels are compiled for.

    `architecture` is `x86`, `arm` (64 bits) or `generic`; `cpu` and `features` are LLVM's names;
    `vector_bytes` is the width that kernels are written for, and there are so many vector `registers`. The
    flags tell a kernel factory which operations are single instructions; the operations exist at every level.
    """

    name: str
    architecture: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int = 16
    has_vnni: bool = False  # vpdpbusd: four products of unsigned and signed bytes
    has_dotprod: bool = False  # sdot: four products of signed bytes
    has_i8mm: bool = False  # usdot: four products of unsigned and signed bytes
    has_fma: bool = False
    has_f16c: bool = False  # halves become singles in one instruction (on ARM: fcvtl)
    has_byte_permutation: bool = False
    has_bf16: bool = False  # vdpbf16ps: two products of bfloat16, added to a single

    @property
    def f32_lanes(self) -> int:
        """Float32 (and int32) lanes of one vector: 16, 8 or 4."""
        return self.vector_bytes // 4

    @property
    def has_byte_dot(self) -> bool:
        """Whether one instruction adds four products of bytes."""
        return self.has_vnni or self.has_dotprod or self.has_i8mm


_AVX2_FEATURES = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt", "sse4.2", "ssse3")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512vnni")
# What a host must report for a level; best level first.
REQUIRED: dict[str, tuple[str, ...]] = {
    "avx512": _AVX512_FEATURES,
    "avx2-vnni": (*_AVX2_FEATURES, "avxvnni"),
    "avx2": _AVX2_FEATURES,
    "neon-i8mm": ("neon", "dotprod", "i8mm"),
    "neon-dotprod": ("neon", "dotprod"),
    "neon": ("neon",),
    "plain": (),
}
_MACHINES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}
# Chosen by `compile_for`, else None.
_foreign: list[str] = []


def host_architecture() -> str:
    """`x86`, `arm` (64 bits both) or `generic`."""
    return _MACHINES.get(platform.machine().lower(), "generic")


def level(name: str) -> Level:
    """The level `name`, whether the host has it or not; an unknown name raises `BackendError`.

    `avx512`: AVX-512 F, BW, VL, DQ and VNNI. `avx2-vnni`: AVX2, FMA, F16C and AVX-VNNI. `avx2`: the same
    without VNNI. `neon-i8mm`, `neon-dotprod`, `neon`: 64-bit ARM with its dot products of mixed signs, of one
    sign, or none. `plain`: SSE2 on x86-64; elsewhere the host's processor through LLVM's generic vectors.
    """
    if name not in REQUIRED:
        raise BackendError(f"unknown CPU level {name!r}; wanted one of {', '.join(REQUIRED)}")
    if name == "plain":
        return _plain()
    return _arm(name) if name.startswith("neon") else _x86(name)


def _plain() -> Level:
    if host_architecture() == "x86":
        return Level("plain", "x86", cpu="x86-64", features="", vector_bytes=16)
    features = "" if host_architecture() == "arm" else str(_llvm_features().flatten())
    cpu = str(llvm.get_host_cpu_name())
    return Level("plain", "generic", cpu=cpu, features=features, vector_bytes=16, has_fma=True)


def _arm(name: str) -> Level:
    features = ",".join(f"+{feature}" for feature in REQUIRED[name])
    return Level(
        name,
        "arm",
        cpu="generic",
        features=features,
        vector_bytes=16,
        registers=32,
        has_dotprod="dotprod" in REQUIRED[name],
        has_i8mm="i8mm" in REQUIRED[name],
        has_fma=True,
        has_f16c=True,
    )


def _x86(name: str) -> Level:
    wide = name == "avx512"
    # All but the first processors with AVX-512 VNNI permute bytes across the register, too.
    permutes = wide and bool(_host_features().get("avx512vbmi", False))
    # Without "-prefer-256-bit" LLVM would split the loops it vectorises by itself into halves.
    tuning = ["-prefer-256-bit"] if wide else []
    if permutes:
        tuning.append("+avx512vbmi")
    multiplies_bf16 = wide and bool(_host_features().get("avx512bf16", False))
    if multiplies_bf16:
        tuning.append("+avx512bf16")
    return Level(
        name,
        "x86",
        cpu="x86-64-v4" if wide else "x86-64-v3",
        features=",".join(["+" + feature for feature in REQUIRED[name]] + tuning),
        vector_bytes=64 if wide else 32,
        registers=32 if wide else 16,
        has_vnni=wide or name == "avx2-vnni",
        has_fma=True,
        has_f16c=True,
        has_byte_permutation=permutes,
        has_bf16=multiplies_bf16,
    )


def _llvm_features() -> llvm.FeatureMap:
    try:
        return llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know here: nothing beyond the baseline is taken for granted
        return llvm.FeatureMap()


def _host_features() -> Mapping[str, bool]:
    features = {name: bool(value) for name, value in _llvm_features().items()}
    if host_architecture() == "arm":
        # Every 64-bit ARM has NEON; LLVM does not ask every system for the rest.
        features |= {"neon": True, **dict.fromkeys(processors.arm_features(), True)}
    return features


def missing_features(name: str) -> tuple[str, ...]:
    """The features of the level `name` that this host lacks, LLVM's names."""
    host = _host_features()
    return tuple(feature for feature in REQUIRED[name] if not host.get(feature, False))


def available() -> tuple[str, ...]:
    """Names of the levels that this host has, best first."""
    return tuple(name for name in REQUIRED if not missing_features(name))


def compile_for(name: str) -> None:
    """Make `name` the level of this process, for compiling alone: the host need not have it.

    For reading the code of other processors; nothing that was compiled can be loaded. Raises `BackendError`
    for an unknown level, and once the process has another.
    """
    wanted = level(name)
    if current.cache_info().currsize and current() != wanted:
        raise BackendError(f"this process compiles for {current().name} already, not for {name}")
    _foreign[:] = [name]


def is_foreign() -> bool:
    """Whether code is made for another machine than this one."""
    return bool(_foreign)


@functools.cache
def current() -> Level:
    """The level of this process: `GRAPHML_CPU_LEVEL`, else the best of the host.

    Raises `BackendError` for an unknown level, and for one that the host lacks (naming what is missing).
    """
    if _foreign:
        return level(_foreign[0])
    chosen = settings.cpu_level()
    if chosen is None:
        return level(available()[0])
    wanted = level(chosen)
    missing = missing_features(chosen)
    if missing:
        raise BackendError(
            f"GRAPHML_CPU_LEVEL={chosen}: this processor ({llvm.get_host_cpu_name()}) lacks "
            f"{', '.join(missing)}; available: {', '.join(available())}"
        )
    return wanted
