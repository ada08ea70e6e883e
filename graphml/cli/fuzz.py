"""`graphml fuzz`: random valid graphs on backends, against NumPy, in every way that must give the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from graphml import settings
from graphml.cli.options import options
from graphml.cli.options.checks import check_backends, check_folder, check_target
from graphml.cli.terminal.console import Bars
from graphml.errors import BackendError, UsageError
from graphml.fuzz import campaign
from graphml.fuzz.checks import CheckedBackend, WrongResult
from graphml.fuzz.graphs import DrawnGraph
from graphml.ir.ops.leaf import LEAVES
from graphml.loading import discovery
from graphml.loading.own_ops import load_own_ops


def fuzz(
    backend: Annotated[
        str, typer.Option(metavar="NAME,...", help="Backends, with commas; each is compared with NumPy.")
    ] = "cpu",
    graphs: Annotated[int, typer.Option(metavar="N", help="Number of graphs.")] = 1000,
    first: Annotated[int, typer.Option(metavar="N", help="Number (seed) of the first graph.")] = 0,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="State of the campaign; a later run resumes from it.", show_default=False
        ),
    ] = None,
    scripts: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for scripts that reproduce differences.")
    ] = Path("fuzz"),
    threads: options.Threads = None,
) -> None:
    """Fuzz backends with random graphs against the NumPy reference. Exit code 1: a result differs.

    Each graph runs fused and plain, planned and with every value kept, at once and in steps. One that differs
    is made small and written as a script. Ops of one's own are drawn too (GRAPHML_OPS).
    """
    if graphs < 1 or first < 0:
        raise UsageError(f"--graphs: wanted 1 or more, and --first 0 or more; got {graphs} and {first}")
    check_backends("--backend", backend)
    check_target("--record", record)
    check_folder("--scripts", scripts)
    load_own_ops()
    names = [name.strip() for name in backend.split(",")]
    tried = campaign.CampaignRecord.read(record, names, first)
    sides = [_side(name, threads) for name in names]
    with Bars() as bars:
        campaign.run(tried, record, first + graphs, sides, scripts, _tell, bars.report)
    _print(tried)
    if tried.found:
        raise typer.Exit(1)


def _side(name: str, threads: int | None) -> CheckedBackend:
    """A backend with a device for each number of threads that is tried."""
    backend = discovery.backend(name)
    reason = backend.unavailable()
    if reason is not None:
        raise BackendError(f"backend {name!r} cannot be used on this machine: {reason}")
    settings.without(f"GRAPHML_{name}_OPTIONS".upper())  # of its compiler: tried is what users run
    counts = [threads] if backend.reads_back else [1, 3, threads]
    return CheckedBackend(backend, [backend.open(count) for count in counts])


def _tell(number: int, difference: WrongResult, script: Path | None, small: DrawnGraph) -> None:
    ops = Counter(node.op.name for node in small.graph.nodes if node.op not in LEAVES)
    shown = ", ".join(name if n == 1 else f"{n} {name}" for name, n in ops.items())
    print(f"graph {number}: {difference.backend}, {difference.way}: {difference.what}")
    print(f"    {shown}{f'; {script}' if script else ''}", flush=True)


def _print(record: campaign.CampaignRecord) -> None:
    tried = record.next - record.first
    print(
        f"{tried} graphs of {record.n_nodes} nodes on {','.join(record.backends)}: {len(record.found)} differ"
    )
