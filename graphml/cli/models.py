"""`graphml models`: what has been downloaded, and which short names there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graphml.bench.describe import describe_file
from graphml.cli.options import options
from graphml.cli.options.checks import bytes_of
from graphml.cli.terminal.console import columns, remark, write_json
from graphml.errors import GraphmlError, UsageError
from graphml.loading import fetch
from graphml.loading.download.short_names import memory_of
from graphml.loading.download.stored import PARTLY, StoredModel, packaged_models, stored_models
from graphml.loading.open_file import open_path
from graphml.system.pages import main_memory
from graphml.system.progress_labels import size

N_CTX = 4096
SHARE = 0.6
"""Of the memory, that a model is suggested for: other programs need some, too."""


def models(
    suggest: Annotated[
        bool, typer.Option("--suggest", help="List the short names that fit into memory, the best fit first.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="List the other short names, too.")] = False,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="For a machine with so much, such as 8G.")
    ] = "",
    json: options.Json = False,
) -> None:
    """List the models on this machine, of graphml, the hub and other programs; --all: short names of more."""
    if suggest or memory:
        _suggest(memory, json)
        return
    stored = stored_models()
    here = [_row(model) for model in (*packaged_models(), *stored)]
    downloaded = {model.short_name for model in stored if model.place != PARTLY}
    known: list[dict[str, Any]] = [
        {
            "name": name, "bytes": model.n_bytes, "good_for": model.good_for, "licence": model.licence,
            "from": model.source,
            "downloaded": name in downloaded or isinstance(model, fetch.PackagedModel),
        }
        for name, model in fetch.MODELS.items()
    ]  # fmt: skip
    if json:
        write_json({"models": here, "short_names": known})
        return
    print("on this machine")
    _table(
        [
            [row["name"], _other(row), row["type"], size(row["bytes"]), row["place"], row["path"]]
            for row in here
        ]
    )
    if not stored:
        print("  nothing downloaded yet: `graphml models --suggest` lists what fits into memory")
    left = [row for row in known if not row["downloaded"]]
    if left and not every:
        remark("`graphml models --all` has short names of others, --suggest those that fit into memory")
    elif left:
        print("\nshort names of others (downloaded when they are first used)")
        _table(
            [[row["name"], size(row["bytes"]), row["good_for"], row["licence"], row["from"]] for row in left]
        )


def _suggest(memory: str, as_json: bool) -> None:
    """The models that answer messages and fit, the largest first."""
    n_bytes = bytes_of("--memory", memory) or main_memory()
    if not n_bytes:
        raise UsageError("--suggest: this system does not say how much memory it has; wanted --memory SIZE")
    rows: list[dict[str, Any]] = [
        {"name": name, "bytes": known.n_bytes, "needs": memory_of(known, N_CTX), "good_for": known.good_for}
        for name, known in fetch.MODELS.items()
        if known.answers
    ]
    rows = sorted(
        (row for row in rows if row["needs"] <= SHARE * n_bytes), key=lambda row: row["needs"], reverse=True
    )
    if as_json:
        write_json({"memory": n_bytes, "n_ctx": N_CTX, "suggested": rows})
        return
    print(f"for {size(n_bytes)} of memory and {N_CTX} tokens of context (`graphml plan NAME` says exactly)")
    _table(
        [["", "download", "needs about", ""]]
        + [[row["name"], size(row["bytes"]), size(row["needs"]), row["good_for"]] for row in rows]
    )
    if not rows:
        print("  none of the short names")


def _other(row: dict[str, Any]) -> str:
    """The short name, where the model is listed under another."""
    return str(row["short_name"] or "") if row["short_name"] != row["name"] else ""


def _row(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "short_name": model.short_name,
        "type": _type(model),
        "bytes": model.n_bytes,
        "place": model.place,
        "path": str(model.path),
        "files": [str(file) for file in model.files],
    }


def _type(model: StoredModel) -> str:
    """Architecture, parameters and quantisation, as the file's header says."""
    if model.place == PARTLY:
        return "not whole"
    try:
        with open_path(model.path) as file:
            return str(describe_file(file)["model_type"])
    except GraphmlError:
        return "cannot be read"


def _table(rows: list[list[str]]) -> None:
    for line in columns(rows):
        print(f"  {repr(line)[1:-1]}")  # of a name it escapes what could steer the terminal
