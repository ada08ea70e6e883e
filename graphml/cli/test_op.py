"""`graphml test-op`: whether a file's ops mean what their functions say, on every backend, and how fast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from graphml import settings
from graphml.backend import Backend
from graphml.cli.options import options
from graphml.cli.options.checks import check_backends, check_file
from graphml.cli.options.typer_options import beginning_with
from graphml.cli.terminal import machine
from graphml.cli.terminal.console import Bars, write_json
from graphml.conformance.own_ops import OwnResult, check_own_ops
from graphml.conformance.suite import matches
from graphml.errors import BackendError, UsageError, did_you_mean
from graphml.inspect.profile.text_table import text_table
from graphml.ir.own_op import OwnOp
from graphml.loading import discovery
from graphml.loading.own_ops import load_ops_of_file, load_own_ops

ORACLE = "reference"  # which is what the others are compared with
OUTPUTS = ("table", "json")
MOST_SHOWN = 3  # failures of an op on a backend


def test_op(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.py", help="The file that declares or imports the ops; it is run.")
    ],
    op: Annotated[str, typer.Option(metavar="PATTERN", help="Names or patterns of ops, with commas.")] = "*",
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help=f"With commas; by default all but {ORACLE} that are usable here.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="table or json.", autocompletion=beginning_with(OUTPUTS))
    ] = OUTPUTS[0],
    threads: options.Threads = None,
) -> None:
    """Test custom ops of a file on every backend against their NumPy functions. Exit code 1: one is wrong."""
    if output not in OUTPUTS:
        raise UsageError(f"--output: wanted one of {', '.join(OUTPUTS)}, for stdout; got {output!r}")
    check_file("FILE", file)
    load_own_ops()
    ops = [own_op for own_op in load_ops_of_file(file) if matches(own_op.name, op)]
    if not ops:
        raise UsageError(f"{file}: declares and imports no op like {op!r} (see graphml.ops.op)")
    _check_kernels(ops)
    backends = _usable(backend)
    results: list[OwnResult] = []
    with Bars() as bars:
        for tested in backends:
            results += check_own_ops(ops, tested, _thread_counts(tested, threads), bars.report)
    memory = machine.read_bandwidth(threads or settings.threads() or os.cpu_count() or 1)
    if output == "json":
        write_json(
            {"file": str(file), "memory_bytes_per_s": memory, "results": [_as_json(r) for r in results]}
        )
    else:
        _print(ops, results, memory)
    if any(result.failed for result in results):
        raise typer.Exit(1)


def _check_kernels(ops: Sequence[OwnOp]) -> None:
    """A kernel for a backend that is not here cannot be tested: its name may be wrong."""
    installed = discovery.backend_names()
    for op in ops:
        for name in op.kernels:
            if name not in installed:
                known = f"wanted one of the installed: {', '.join(installed)}"
                op.declared.fail(f"its kernel is for {name!r}; {known}.{did_you_mean(name, installed)}")


def _usable(named: str | None) -> list[Backend]:
    """The backends that were asked for; by default those that this machine has."""
    if named is not None:
        check_backends("--backend", named)
    backends = []
    every = [name for name in discovery.backend_names() if name != ORACLE]
    for name in every if named is None else (part.strip() for part in named.split(",")):
        try:
            backend = discovery.backend(name)
            reason = backend.unavailable()
        except BackendError as error:
            reason = str(error)
        if reason is None:
            backends.append(backend)
        elif named is not None:
            raise BackendError(f"backend {name!r} cannot be used on this machine: {reason}")
    return backends


def _thread_counts(backend: Backend, threads: int | None) -> Sequence[int | None]:
    """One, an odd number, and last as many as were asked for: rows are shared otherwise by each."""
    return [threads] if backend.reads_back else [1, 3, threads]


def _print(ops: Sequence[OwnOp], results: Sequence[OwnResult], memory: float) -> None:
    for op in ops:
        print(f"{op.name}{op.declared.with_names()} at {op.declared.source}")
    rows = [_row(result, memory) for result in results]
    formats = {"NMSE": ".1e", "us, 1 row": ".1f", "us, 512": ".1f", "GB/s": ".1f", "% of memory": ".0f"}
    print("\n".join(["", *text_table(rows, formats)]))
    for result in results:
        if result.reason:
            print(f"{result.op} on {result.backend} runs in NumPy: {result.reason}")
        for verdict in result.failed[:MOST_SHOWN]:
            print(f"FAIL {result.backend} {verdict}")
        if len(result.failed) > MOST_SHOWN:
            print(f"     and {len(result.failed) - MOST_SHOWN} more of {result.op} on {result.backend}")
    failed = sum(len(result.failed) for result in results)
    print(f"{sum(len(result.verdicts) for result in results)} cases, {failed} failed")


def _row(result: OwnResult, memory: float) -> dict[str, Any]:
    single, many = (
        [timing for timing in result.timings if (timing.tokens == 1) == is_one] for is_one in (True, False)
    )
    rate = many[-1].bytes_per_s if many else None
    return {
        "op": result.op,
        "backend": result.backend,
        "runs as": result.how,
        "cases": len(result.verdicts),
        "failed": len(result.failed),
        "NMSE": result.nmse,
        "ULP": result.max_ulp,
        "us, 1 row": 1e6 * single[-1].seconds if single else None,
        "us, 512": 1e6 * many[-1].seconds if many else None,
        "GB/s": rate / 1e9 if rate else None,
        "% of memory": 100 * rate / (result.memory_bytes_per_s or memory) if rate else None,
    }


def _as_json(result: OwnResult) -> dict[str, Any]:
    return {
        "op": result.op,
        "backend": result.backend,
        "how": result.how,
        "reason": result.reason,
        "cases": len(result.verdicts),
        "failed": [str(verdict) for verdict in result.failed],
        "nmse": None if result.nmse == float("inf") else result.nmse,
        "max_ulp": result.max_ulp,
        "memory_bytes_per_s": result.memory_bytes_per_s,
        "timings": [
            {"call": t.call, "tokens": t.tokens, "seconds": t.seconds, "bytes_per_s": t.bytes_per_s}
            for t in result.timings
        ],
    }
