"""`graphml rm`: remove downloaded models."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from graphml.errors import UsageError
from graphml.loading.download.stored import PARTLY, StoredModel, named, remove, stored_models
from graphml.system.progress_labels import size

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="Short names, user/repo:QUANT, user/repo for all, addresses or paths, as of `graphml models`.",
        show_default=False,
    ),
]


def rm(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove downloaded models, whole or partial, from graphml's cache and the Hugging Face hub's."""
    stored = stored_models()
    chosen = list(dict.fromkeys(model for name in names for model in named(stored, name)))
    if not yes and not _confirmed(chosen):
        print("nothing was removed", file=sys.stderr)
        raise typer.Exit(1)
    freed = 0
    for model in chosen:
        freed += remove(model)
        print(f"removed {_line(model)}")
    print(f"freed {size(freed)}")


def _confirmed(chosen: list[StoredModel]) -> bool:
    """Ask, which wants a terminal."""
    if not _on_terminal():
        names = ", ".join(repr(model.name)[1:-1] for model in chosen)
        raise UsageError(f"rm: wanted --yes, or a terminal to ask on; it would remove {names}")
    for model in chosen:
        print(f"{_line(model)}", file=sys.stderr)
    total = size(sum(model.n_bytes for model in chosen))
    return typer.confirm(f"Remove {'it' if len(chosen) == 1 else 'them'} ({total})?", err=True)


def _on_terminal() -> bool:
    return sys.stdin.isatty()


def _line(model: StoredModel) -> str:
    what = " (partial download)" if model.place == PARTLY else ""
    return repr(f"{model.name}{what} {model.path}")[1:-1]
