"""The backend as a value: the device of the CPU backend, with a table of kernels that are plain functions."""

from __future__ import annotations

import functools
import importlib.util

from graphml_cpu.node_support import CpuNodeSupport

from graphml.backend import Backend, Device
from graphml.ir.node import Node

FUSED = frozenset((
    "linear", "linear_id", "softcap", "swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu", "rms_norm_mul",
    "layer_norm_mul", "ssm_conv_silu",
))  # fmt: skip
"""The fused ops that have kernels: known here, so that backends can be listed without numba."""


@functools.cache
def _support() -> CpuNodeSupport:
    from graphml_numba.kernels import table  # imports numba, which not everybody has

    return CpuNodeSupport("numba", table())


def _open(threads: int | None) -> Device:
    from graphml_cpu.device import CpuDevice

    return CpuDevice(threads, _support())


def _refuses(node: Node) -> str | None:
    return _support().refuses(node)


def _unavailable() -> str | None:
    missing = importlib.util.find_spec("numba") is None
    return "numba is not installed; in a clone of graphml: pip install '.[numba]'" if missing else None


BACKEND = Backend("numba", open=_open, refuses=_refuses, fused=FUSED, unavailable=_unavailable)
