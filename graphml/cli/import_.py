"""`graphml import`: an architecture file from a PyTorch model, traced, recognised, proved and written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphml.authoring.importing.command import import_source
from graphml.cli.options.checks import check_target
from graphml.cli.terminal.console import write_file
from graphml.errors import ArchitectureError, BackendError, UsageError, WeightsError


def import_(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="hf:FOLDER, or module:FILE.py:factory, which is run."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.py", show_default=False, help="Output file.")
    ],
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE.gguf", show_default=False,
                     help="Also write the weights; required for a plain module."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FOLDER|FILE", show_default=False,
                     help="Tokenizer of a plain module: a folder of transformers, or a GGUF file."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", show_default=False, help="Write the report as HTML."),
    ] = None,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", show_default=False, help="Python that has torch.")
    ] = sys.executable,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code of the model folder.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> None:  # fmt: skip
    """Trace a PyTorch model, write it as an architecture file for --arch, and check its logits.

    Exit code 2: it cannot be imported, and nothing is written.
    """
    targets = (("--output", output, ".py"), ("--weights", weights, ".gguf"), ("--report", page, ".html"))
    for option, path, ending in targets:
        check_target(option, path, ending)
        if path is not None and path.exists() and not force:
            raise UsageError(f"{option}: {path} is there already; --force overwrites it")
    if source.startswith("module:") and weights is None:
        raise UsageError("--weights: a plain module has its weights in no file: wanted FILE.gguf")
    if tokenizer is not None and not source.startswith("module:"):
        raise UsageError("--tokenizer: wanted for a plain module; a folder has its own")
    if tokenizer is not None and not tokenizer.exists():
        raise UsageError(f"--tokenizer: {tokenizer}: no such file or folder")
    try:
        done = import_source(
            source, output.stem, python, trust_remote_code, weights, tokenizer,
            say=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    except (ArchitectureError, BackendError, WeightsError) as error:
        raise UsageError(str(error)) from None
    write_file(output, done.text, "--output")
    if page is not None:
        write_file(page, done.report.page(done.text), "--report")
    print(done.report.markdown(), end="")
