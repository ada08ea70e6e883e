"""`graphml cache`: what graphml has written on this machine, by kind, and its removal."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from graphml import settings
from graphml.cli.options import options
from graphml.cli.options.checks import bytes_of
from graphml.cli.terminal.console import print_error, write_json
from graphml.errors import UsageError
from graphml.loading.download.stored import SHARED, stored_models
from graphml.system.cache_contents import (
    KINDS,
    OTHERS,
    CacheEntry,
    cache_entries,
    chosen_entries,
    remove_entry,
)
from graphml.system.progress_labels import size


def cache(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND]...", help="Kinds to list or remove; by default all.", show_default=False
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is listed.")] = False,
    older_than: Annotated[
        float,
        typer.Option("--older-than", min=0, metavar="DAYS", help="Only what was not used for so many days."),
    ] = 0,
    over: Annotated[
        str, typer.Option("--over", metavar="SIZE", help="Only what is at least so large: 500M, 2G.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --remove: list what it would remove.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: options.Json = False,
) -> None:
    """List what graphml keeps here (models, kernels, tuning, made models) by kind, or remove it."""
    chosen = chosen_entries(cache_entries(), kinds or (), older_than, bytes_of("--over", over))
    if remove and not dry_run:
        _remove(chosen, yes)
        return
    if json:
        rows = [asdict(entry) | {"path": str(entry.path)} for entry in chosen]
        write_json({"folder": str(settings.cache_folder()), "entries": rows})
        return
    print(settings.cache_folder())
    for kind in dict.fromkeys(entry.kind for entry in chosen):
        of_kind = [entry for entry in chosen if entry.kind == kind]
        total = size(sum(entry.n_bytes for entry in of_kind))
        print(f"  {_plain(kind):14} {total:>10}  {len(of_kind):5}  {KINDS.get(kind, OTHERS)}")
        if kinds or older_than or over:
            for entry in of_kind:
                print(f"    {size(entry.n_bytes):>10}  {entry.age_days:5.0f} days  {_plain(entry.path.name)}")
    print(f"  {'all':14} {size(sum(entry.n_bytes for entry in chosen)):>10}  {len(chosen):5}")
    if not kinds:
        shared = [model for model in stored_models() if model.place == SHARED]
        if shared:
            total = size(sum(model.n_bytes for model in shared))
            print(f"and {total} in {len(shared)} models of the hub's cache: graphml models, graphml rm")


def _remove(chosen: list[CacheEntry], yes: bool) -> None:
    total = size(sum(entry.n_bytes for entry in chosen))
    if chosen and not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"cache: wanted --yes, or a terminal to ask on; it would remove {total}")
        for entry in chosen:
            print(f"{size(entry.n_bytes):>10}  {_plain(str(entry.path))}", file=sys.stderr)
        if not typer.confirm(f"Remove {len(chosen)} entries ({total})?", err=True):
            print("nothing was removed", file=sys.stderr)
            raise typer.Exit(1)
    freed, refusals = 0, list[UsageError]()
    for entry in chosen:
        try:
            remove_entry(entry)
            freed += entry.n_bytes
        except UsageError as error:
            refusals.append(error)
    print(f"freed {size(freed)}")
    for refusal in refusals:
        print_error(refusal)
    if refusals:
        raise typer.Exit(1)


def _plain(name: str) -> str:
    """A file's name without what could steer a terminal."""
    return repr(name)[1:-1]
