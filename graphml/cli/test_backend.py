"""`graphml test-backend`: whether a backend means what the reference means, how fast it is, what it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from graphml.backend import Backend, Device, on_device
from graphml.cli.options import options
from graphml.cli.options.checks import check_backends, check_file
from graphml.cli.terminal.console import Bars, write_json
from graphml.conformance import networks, perf, suite
from graphml.conformance.cases import Case
from graphml.conformance.suite import NATIVE, apart, support
from graphml.conformance.verdict import LIMITS, Verdict
from graphml.errors import BackendError, UsageError
from graphml.loading import discovery

MODES = ("test", "perf", "support")
MOST_SHOWN = 3  # failures of an op


def test_backend(
    backend: Annotated[
        str,
        typer.Argument(metavar="NAME", help="An installed backend, or a Python file whose BACKEND it is."),
    ],
    op: Annotated[str, typer.Option(metavar="PATTERN", help="Names or patterns of ops, with commas.")] = "*",
    mode: Annotated[
        str, typer.Option(help="test against the reference, perf (time per call) or support (which kernels).")
    ] = "test",
    type: Annotated[
        str,
        typer.Option("--type", metavar="FORMATS", help="Types of weights and caches, with commas: f32,q4_k."),
    ] = "",
    limits: Annotated[
        str, typer.Option(help="Tolerances: graphml, or ggml, which allows half precision.")
    ] = "graphml",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every case.")] = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Test every op of a backend against the NumPy reference, in every format. Exit code 1: one is wrong."""
    if mode not in MODES:
        raise UsageError(f"--mode: wanted one of {', '.join(MODES)}; got {mode!r}")
    if limits not in LIMITS:
        raise UsageError(f"--limits: wanted one of {', '.join(LIMITS)}; got {limits!r}")
    chosen = _find(backend)
    formats = [name.strip().lower() for name in type.split(",") if name.strip()]
    if mode == "perf" and not formats:
        formats = list(perf.FORMATS)
    some = suite.chosen(chosen, op, formats)
    with_networks = mode == "test" and not formats and suite.matches(networks.OP, op)
    if not some and not with_networks:
        raise UsageError(f"no case of {chosen.name} has an op like {op!r} and a format like {type or '*'!r}")
    if mode == "support":
        _show_support(chosen, some, op, json)
        return
    reason = chosen.unavailable()
    if reason is not None:
        raise BackendError(f"backend {chosen.name!r} cannot be used on this machine: {reason}")
    device = chosen.open(threads)
    some = suite.chosen(on_device(chosen, device), op, formats)
    try:
        if mode == "perf":
            timed = perf.perf_cases(some)
            if not timed:
                raise UsageError(
                    f"--mode perf: no op like {op!r} takes time in a step: views compute nothing, and ops of "
                    "weights alone run once, when a model is loaded"
                )
            _show_perf(chosen, perf.measure(chosen, device, timed), json)
            return
        with Bars() as bars:
            verdicts = _run(chosen, device, some, limits, with_networks, None if json else verbose, bars)
    finally:
        device.close()
    failed = sum(verdict.failed for verdict in verdicts)
    if json:
        cases = [{key: _plain(value) for key, value in asdict(verdict).items()} for verdict in verdicts]
        write_json({"backend": chosen.name, "cases": len(verdicts), "failed": failed, "verdicts": cases})
    else:
        native = sum(verdict.refused is None for verdict in verdicts)
        summary = f"{native} native, {len(verdicts) - native} in NumPy, {failed} failed"
        print(f"{chosen.name}: {len(verdicts)} cases, {summary}")
    if failed:
        raise typer.Exit(1)


def _find(name: str) -> Backend:
    if name.endswith(".py"):
        check_file("NAME", Path(name))
        return discovery.backend_from_file(Path(name))
    try:
        return discovery.backend(name)
    except BackendError:
        check_backends("NAME", name)
        raise


def _run(
    backend: Backend,
    device: Device,
    some: Sequence[Case],
    limits: str,
    with_networks: bool,
    verbose: bool | None,
    bars: Bars,
) -> list[Verdict]:
    """The verdicts, printed op by op as they come; verbose None: nothing is printed."""
    if verbose is False:
        columns = f"{'cases':>6} {'native':>7} {'NumPy':>6} {'failed':>7} {'worst NMSE':>11} {'allowed':>8}"
        print(f"{'op':24} {columns}")
    verdicts = suite.check(backend, device, some, limits, bars.report)
    whole = networks.check(backend, device, limits) if with_networks else ()
    collected: list[Verdict] = []
    for op, of_op in groupby(chain(verdicts, whole), key=lambda verdict: verdict.op):
        now = list(of_op)
        collected += now
        if verbose is not None:
            _show(op, now, verbose)
    return collected


def _show(op: str, of_op: Sequence[Verdict], verbose: bool) -> None:
    failed = [verdict for verdict in of_op if verdict.failed]
    if verbose:
        for verdict in of_op:
            print(f"{'FAIL' if verdict.failed else 'ok  '} {verdict}", flush=True)
        return
    print(_row(op, of_op), flush=True)
    for verdict in failed[:MOST_SHOWN]:
        print(f"FAIL {verdict}", flush=True)
    if len(failed) > MOST_SHOWN:
        print(f"     and {len(failed) - MOST_SHOWN} more of {op}: --verbose", flush=True)


def _row(op: str, of_op: Sequence[Verdict]) -> str:
    native = sum(verdict.refused is None for verdict in of_op)
    failed = sum(verdict.failed for verdict in of_op)
    worst = max(of_op, key=lambda verdict: verdict.nmse)
    return (
        f"{op:24} {len(of_op):6} {native:7} {len(of_op) - native:6} {failed:7} "
        f"{worst.nmse:11.1e} {worst.limit:8.0e}"
    )


def _show_support(backend: Backend, some: Sequence[Case], pattern: str, json: bool) -> None:
    entries = support(backend, some)
    entries += [entry for entry in apart(backend) if suite.matches(entry.op, pattern)]
    if json:
        write_json({"backend": backend.name, "support": [asdict(entry) for entry in entries]})
        return
    print(f"{'op':24} {'formats':44} {'how':14} why not native")
    for op in dict.fromkeys(entry.op for entry in entries):
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for entry in entries:
            if entry.op == op:
                alike.setdefault((entry.how, entry.reasons), []).append(entry.format)
        for (how, reasons), formats in alike.items():
            print(f"{op:24} {_shortened(formats):44} {how:14} {'; '.join(reasons)}".rstrip())
    native = sum(entry.how == NATIVE for entry in entries)
    print(f"{backend.name}: {native} of {len(entries)} pairs of op and format are native")


def _shortened(formats: Sequence[str], most: int = 5) -> str:
    more = f" and {len(formats) - most} more" if len(formats) > most else ""
    return ", ".join(formats[:most]) + more


def _show_perf(backend: Backend, timings: Iterable[perf.Timing], json: bool) -> None:
    if json:
        rows: list[dict[str, Any]] = [
            {**asdict(timing), "bytes_per_s": timing.bytes_per_s, "flops_per_s": timing.flops_per_s}
            for timing in timings
        ]
        write_json({"backend": backend.name, "timings": rows})
        return
    print(f"{'op':24} {'format':8} {'T':>4} {'us':>10} {'GB/s':>8} {'GFLOP/s':>9}  call")
    for timing in timings:
        remark = "" if timing.refused is None else " (NumPy)"
        rate = f"{timing.flops_per_s / 1e9:9.1f}" if timing.flops else f"{'':9}"
        print(
            f"{timing.op:24} {timing.format:8} {timing.tokens:4} {1e6 * timing.seconds:10.1f} "
            f"{timing.bytes_per_s / 1e9:8.2f} {rate}  {timing.call}{remark}",
            flush=True,
        )


def _plain(value: object) -> object:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and value == float("inf") else value
