"""`graphml convert`: a model as one GGUF file, with adapters merged and its architecture's source in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.authoring.handing_on import hand_on
from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars
from graphml.errors import UsageError
from graphml.system.progress_labels import size


@grouped
def convert(
    opening: options.Converted,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.gguf", show_default=False, help="Output file.")
    ],
    model: options.Model = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a model as one GGUF file: adapters merged, --arch in it, compared before it has its name.

    A file with a definition runs with --trust-arch and needs nothing else.
    """
    check_target("--output", output, ".gguf")
    if output.exists() and not force:
        raise UsageError(f"--output: {output} is there already; --force overwrites it")
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        source = None if opening.arch is None else Path(opening.arch)
        done = hand_on(opened, output, source, opening)
    adapters = f"; {done.n_merged} matrices with adapters" if done.n_merged else ""
    print(f"{output}: {size(output.stat().st_size)}{adapters}; logits as the model's, NMSE {done.nmse:.1e}")
