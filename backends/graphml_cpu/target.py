"""Instruction-set levels: what the kernels may use, found from the host or chosen by `GRAPHML_CPU_LEVEL`.

Knows LLVM's names for processors and features; knows nothing of numba, kernels or graphs.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass

import llvmlite.binding as llvm

from graphml import settings
from graphml.errors import BackendError


@dataclass(frozen=True)
class Level:
    """One instruction set that kernels are compiled for.

    `cpu` and `features` are LLVM's names; `vector_bytes` is the width that kernels are written for. The flags
    tell a kernel factory which operations are single instructions; the operations exist at every level.
    """

    name: str
    cpu: str
    features: str
    vector_bytes: int
    has_vnni: bool = False
    has_fma: bool = False
    has_f16c: bool = False
    has_byte_permutation: bool = False

    @property
    def f32_lanes(self) -> int:
        """Float32 (and int32) lanes of one vector: 16, 8 or 4."""
        return self.vector_bytes // 4


_AVX2_FEATURES = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt", "sse4.2", "ssse3")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512vnni")
# What a host must report for a level; best level first.
REQUIRED: dict[str, tuple[str, ...]] = {
    "avx512": _AVX512_FEATURES,
    "avx2-vnni": (*_AVX2_FEATURES, "avxvnni"),
    "avx2": _AVX2_FEATURES,
    "plain": (),
}


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def level(name: str) -> Level:
    """The level `name`, whether the host has it or not; an unknown name raises `BackendError`.

    `avx512`: AVX-512 F, BW, VL, DQ and VNNI. `avx2-vnni`: AVX2, FMA, F16C and AVX-VNNI. `avx2`: the same
    without VNNI. `plain`: SSE2 on x86-64; elsewhere the host's processor through LLVM's generic vectors.
    """
    if name == "plain":
        if _is_x86():
            return Level(name, cpu="x86-64", features="", vector_bytes=16)
        features = _host_features().flatten()
        return Level(
            name, cpu=str(llvm.get_host_cpu_name()), features=features, vector_bytes=16, has_fma=True
        )
    if name not in REQUIRED:
        raise BackendError(f"unknown CPU level {name!r}; wanted one of {', '.join(REQUIRED)}")
    wide = name == "avx512"
    # All but the first processors with AVX-512 VNNI permute bytes across the register, too.
    permutes = wide and bool(_host_features().get("avx512vbmi", False))
    # Without "-prefer-256-bit" LLVM would split the loops it vectorises by itself into halves.
    tuning = ["-prefer-256-bit"] if wide else []
    if permutes:
        tuning.append("+avx512vbmi")
    return Level(
        name,
        cpu="x86-64-v4" if wide else "x86-64-v3",
        features=",".join(["+" + feature for feature in REQUIRED[name]] + tuning),
        vector_bytes=64 if wide else 32,
        has_vnni=wide or name == "avx2-vnni",
        has_fma=True,
        has_f16c=True,
        has_byte_permutation=permutes,
    )


def _host_features() -> llvm.FeatureMap:
    try:
        return llvm.get_host_cpu_features()
    except (
        RuntimeError
    ):  # LLVM cannot tell on this platform: nothing beyond the baseline is taken for granted
        return llvm.FeatureMap()


def missing_features(name: str) -> tuple[str, ...]:
    """The features of the level `name` that this host lacks, LLVM's names."""
    if name != "plain" and not _is_x86():
        return REQUIRED[name]
    host = _host_features()
    return tuple(feature for feature in REQUIRED[name] if not host.get(feature, False))


def available() -> tuple[str, ...]:
    """Names of the levels that this host has, best first."""
    return tuple(name for name in REQUIRED if not missing_features(name))


@functools.cache
def current() -> Level:
    """The level of this process: `GRAPHML_CPU_LEVEL`, else the best of the host.

    Raises `BackendError` for an unknown level, and for one that the host lacks (naming what is missing).
    """
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
