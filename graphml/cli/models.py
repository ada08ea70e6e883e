"""`graphml models`: what has been downloaded, and which short names there are."""

from __future__ import annotations

from typing import Any

from graphml.bench.describe import describe_file
from graphml.cli.options import options
from graphml.cli.terminal.console import columns, size, write_json
from graphml.errors import GraphmlError
from graphml.loading import fetch
from graphml.loading.download.stored import PARTLY, StoredModel, stored_models
from graphml.loading.open_file import open_path


def models(json: options.Json = False) -> None:
    """List the models on this machine, in graphml's cache and the Hugging Face hub's, and the short names."""
    stored = stored_models()
    here = [_row(model) for model in stored]
    downloaded = {model.short_name for model in stored if model.place != PARTLY}
    known: list[dict[str, Any]] = [
        {
            "name": name, "bytes": model.n_bytes, "licence": model.licence, "from": model.source,
            "downloaded": name in downloaded,
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
        or [["nothing yet"]]
    )
    left = [row for row in known if not row["downloaded"]]
    if left:
        print("\nshort names of others (downloaded when they are first used)")
        _table([[row["name"], size(row["bytes"]), row["licence"], row["from"]] for row in left])


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
