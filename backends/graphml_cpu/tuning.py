"""What `graphml tune` found: a small JSON file in the cache folder, and how it changes kernel calls.

Knows the parameters that kernels have, and the file; how good ones are found is `graphml_cpu.tuner`'s.

The file `tuning.json` holds a list of entries. Each has the processor's name, the instruction set, the hash
of the kernels' sources (another one makes it void), kernel, n, k and threads, the parameters, and the seconds
of one call with the usual parameters and with these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm

from graphml.backend import tuning_file
from graphml.errors import BackendError
from graphml_cpu import kernel_cache, target
from graphml_cpu.compiler import KernelRef
from graphml_cpu.kernels import formats
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.lowering.step import KernelCall

Key = tuple[str, int, int, int]
"""Kernel, n, k, threads."""

_PARTS = (1, 2, 4, 8)
FEW = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, FEW_ROWS, 96, 2 * FEW_ROWS)
"""Most rows that may be multiplied without panels."""


def candidates(kernel: KernelRef) -> Mapping[str, Sequence[int]]:
    """The parameters of a kernel and the values that they may take; none for kernels that have no parameters.

    tokens: of a register tile. columns: of a panel of float weights. parts: into how many each thread's share
    of the call is cut. few_rows: up to how many rows no panel is unpacked.
    """
    if kernel.factory != "make_mul_mat":
        return {}
    tiles = dict(kernel.calls)["tiles"]
    if tiles is None:
        return {"parts": _PARTS}
    if formats.has_reader(str(tiles.arguments[0])):
        return {"tokens": (2, 3, 4, 5, 6, 8), "parts": _PARTS, "few_rows": FEW}
    return {"tokens": (4, 6, 8, 10, 12), "columns": (512, 1024, 2048), "parts": _PARTS, "few_rows": FEW}


def key_of(step: KernelCall, threads: int) -> Key | None:
    """What a call's parameters are kept under; None where it has none."""
    n, k = step.arguments.get("n"), step.arguments.get("k")
    if not isinstance(step.kernel, KernelRef) or not candidates(step.kernel):
        return None
    if not isinstance(n, int) or not isinstance(k, int):
        return None
    return step.kernel.name, n, k, threads


def tunable(step: KernelCall) -> KernelRef:
    """The kernel of a call that has a key: one of this package."""
    assert isinstance(step.kernel, KernelRef)
    return step.kernel


def with_parameters(step: KernelCall, parameters: Mapping[str, int]) -> KernelCall:
    """The call with parameters other than the usual ones."""
    tokens, columns = parameters.get("tokens", 0), parameters.get("columns", 0)
    kernel = tunable(step)
    calls = dict(kernel.calls)
    tiles = calls.get("tiles")
    if tiles is not None and (tokens or columns):
        suffix, arguments = f"-{tokens}-{columns}", (tiles.arguments[0], tokens, columns)
        calls["tiles"] = replace(tiles, name=tiles.name + suffix, arguments=arguments)
        kernel = replace(kernel, name=kernel.name + suffix, calls=tuple(calls.items()))
    step_arguments = step.arguments
    if "few_rows" in parameters:
        step_arguments = {**step_arguments, "few_rows": parameters["few_rows"]}
    return replace(step, kernel=kernel, arguments=step_arguments, parts=parameters.get("parts"))


@dataclass(frozen=True)
class CpuTuning:
    """Parameters other than the usual ones, by kernel, shape and threads."""

    entries: Mapping[Key, Mapping[str, int]]

    def applied(self, step: KernelCall, threads: int) -> KernelCall:
        """The call as it was found to be fastest."""
        key = key_of(step, threads) if self.entries else None
        if key is None or key not in self.entries:
            return step
        known, parameters = candidates(tunable(step)), self.entries[key]
        for name, value in parameters.items():
            # Others might not fit into the kernel's scratch memory, and 4.0 is another kernel than 4.
            if type(value) is not int or value not in known.get(name, ()):
                raise BackendError(
                    f"{tuning_file.path()}: {step.kernel.name} has no {name} of {value!r}; remove the file"
                )
        return with_parameters(step, parameters)


UNTUNED = CpuTuning({})


def _machine() -> dict[str, str]:
    """What an entry must have been made with to be of use."""
    return {
        "cpu": str(llvm.get_host_cpu_name()),
        "level": target.current().name,
        "version": kernel_cache.sources_hash(),
    }


def _key_of(entry: Mapping[str, Any]) -> Key:
    return str(entry["kernel"]), int(entry["n"]), int(entry["k"]), int(entry["threads"])


def load() -> CpuTuning:
    """What was found on this machine with these kernels; see `tuning_file.parameters_of`."""
    return CpuTuning(tuning_file.parameters_of(_machine(), _key_of))


def save(results: Mapping[Key, Mapping[str, Any]]) -> None:
    """Put results into the file; see `tuning_file.put`. They have `parameters`, `usual_s` and `tuned_s`."""
    machine = _machine()
    version = machine.pop("version")
    names = ("kernel", "n", "k", "threads")
    entries = {key: {**dict(zip(names, key, strict=True)), **result} for key, result in results.items()}
    tuning_file.put(machine, version, _key_of, entries)
