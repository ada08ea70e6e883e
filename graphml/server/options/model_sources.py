"""Models that a server may load: by name, where each is, how it is opened and what memory it needs.

Knows files' names and folders; nothing of requests, nor of what is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphml.api.model import Model
from graphml.errors import UsageError
from graphml.server.options.server_options import ServerOptions
from graphml.weights.file_names import is_gguf, without_ending

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,254}", re.ASCII)
LATER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
"""Of a model in several files, which is loaded by the first of them."""


@dataclass(frozen=True)
class LoadableModel:
    """A model that may be loaded.

    find: its file, downloaded if it must be. open: opens that. size: the bytes that it takes while loaded.
    on_startup: loaded at the start. All three run in threads and may raise GraphmlError. stated: equal where
    a model would be opened with the same flags.
    """

    options: ServerOptions
    find: Callable[[], Path]
    open: Callable[[Path], Model]
    size: Callable[[Path], int] = lambda path: 0
    on_startup: bool = False
    stated: object = None


def named_models(first: str | None, others: Sequence[str]) -> dict[str, str]:
    """Models of a command line by name: what a path, reference or address ends with, without its ending.

    UsageError where two, or the first model and another, have one name.
    """
    named: dict[str, str] = {}
    for model in others:
        name = without_ending(re.split(r"[/\\]", model.rstrip("/\\"))[-1]).replace(":", "-")
        same = named.get(name, first if first is not None and without_ending(first) == name else None)
        if same is not None:
            raise UsageError(
                f"serve: {same!r} and {model!r} have the name {name!r}; wanted one of them renamed"
            )
        if not NAME.fullmatch(name):
            raise UsageError(f"serve: {model!r}: wanted a name of letters, digits and _.+- for requests")
        named[name] = model
    return named


def folder_models(folder: Path) -> dict[str, Path]:
    """The GGUF files of a folder, and its folders that have one model, by name without the ending.

    Hidden names and those with other characters than letters, digits and `_.+-` are left out. UsageError for
    a folder that cannot be read.
    """
    models: dict[str, Path] = {}
    try:
        for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
            files = _ggufs(inner)
            if len(files) == 1 and NAME.fullmatch(inner.name):
                models[inner.name] = files[0]
        models |= {without_ending(path.name): path for path in _ggufs(folder) if NAME.fullmatch(path.name)}
    except OSError as error:
        raise UsageError(f"--models-dir: the folder cannot be read: {error.strerror}") from None
    return dict(sorted(models.items()))


def _ggufs(folder: Path) -> list[Path]:
    """The first files of the models of a folder; projectors of images are no models."""
    return [
        path
        for path in sorted(folder.iterdir())
        if is_gguf(path.name)
        and path.is_file()
        and not LATER_PART.search(path.name)
        and not path.name.startswith("mmproj")
    ]
