"""`graphml pull`: get a model and print its path."""

from __future__ import annotations

from typing import Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.opening import find
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars


@grouped
def pull(
    source: options.ModelSource,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A short name of `graphml models`, user/repo:QUANT or an address; by default smollm2.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Download a model unless it is there already, and print its path."""
    with Bars() as bars:
        path = find(name, source, bars)
    print(path)
