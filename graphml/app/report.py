"""`graphml report`: one zip to attach to a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import graphml
from graphml.app import doctor, options
from graphml.app.console import Bars, remark
from graphml.app.opening import find
from graphml.errors import UsageError
from graphml.inspect.report import report as gather
from graphml.inspect.report import write_zip


def report(
    model: options.Model = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.zip", help="Where to write it.")
    ] = Path("graphml-report.zip"),
    backend: options.Backend = "cpu",
    threads: options.Threads = None,
    kv: options.CacheType = "f16",
    quant: options.Quant = None,
    batch: options.BatchSize = 512,
    arch: options.Architecture = None,
    fuse: options.Fuse = "",
    place: options.Place = "",
    strict: options.Strict = False,
    hf: options.Hub = None,
) -> None:
    """Write graphs, plan, placement, fusions, a small profile and facts of the machine into one zip.

    No weights, no vocabulary, no prompts and no folders are in it. Prints its path.
    """
    with Bars() as bars:
        path = find(model, hf, bars)

        def load() -> graphml.Model:
            return graphml.load(
                path, backend, threads, kv=kv, quant=quant, n_batch=batch, arch=arch, fuse=fuse, place=place,
                strict=strict, progress=bars.report,
            )  # fmt: skip

        files = gather(path, load, lambda: doctor.facts(threads))
    try:
        write_zip(files, output)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written: {error.strerror or error}") from None
    if "errors.txt" in files:
        remark("not all of it could be made; errors.txt in it says why")
    print(output)
