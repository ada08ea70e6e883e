"""`graphml pull`: get a model and print where it lies."""

from __future__ import annotations

from typing import Annotated

import typer

from graphml.app import options
from graphml.app.console import Bars
from graphml.app.opening import find
from graphml.engine import fetch


def pull(
    name: Annotated[
        str | None,
        typer.Argument(help=f"A known name: {', '.join(fetch.MODELS)}; the default.", show_default=False),
    ] = None,
    hf: options.Hub = None,
) -> None:
    """Download a model unless it is there already, and print its path."""
    with Bars() as bars:
        path = find(name, hf, bars)
    print(path)
