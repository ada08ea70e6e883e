"""Models that other programs keep on this machine: ollama's, and LM Studio's.

Both keep GGUF files: ollama by their sums, with a manifest for each name; LM Studio by repositories.
Reads names and manifests; changes nothing there and opens no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphml import settings
from graphml.errors import GraphmlError, UsageError, did_you_mean
from graphml.loading.download.choice import models_of
from graphml.system.read_files import guarded, plain_json

OLLAMA, LM_STUDIO = "ollama", "lmstudio"
PREFIXES = (f"{OLLAMA}:", f"{LM_STUDIO}:")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LARGEST_MANIFEST = 1 << 20
_REGISTRY = "registry.ollama.ai"


@dataclass(frozen=True)
class OtherModel:
    """A model of another program: its name here, the program, its files in order, the program's folder."""

    name: str
    program: str
    files: tuple[Path, ...]
    root: Path


def other_models() -> list[OtherModel]:
    """All of them, by program and name."""
    return [*_of_ollama(), *_of_lm_studio()]


def path_of_other(name: str) -> Path:
    """The file of a model by its name here, such as "ollama:llama3.2:1b"; UsageError if there is none."""
    here = {model.name: model.files[0] for model in reversed(other_models())}  # the first of a name counts
    path = here.get(name) or here.get(f"{name}:latest")
    if path is None:
        raise UsageError(
            f"model {name!r}: it is not among those of that program (`graphml models` lists them)."
            f"{did_you_mean(name, here, 1)}"
        )
    return path


def _of_ollama() -> Iterator[OtherModel]:
    for root in settings.ollama_folders():
        for manifest in sorted((root / "manifests").glob("*/*/*/*")):
            blob = _blob_of(manifest, root)
            if blob is not None:
                host, namespace, model, tag = manifest.relative_to(root / "manifests").parts
                owner = "" if namespace == "library" else f"{namespace}/"
                server = "" if host == _REGISTRY else f"{host}/"
                yield OtherModel(f"{OLLAMA}:{server}{owner}{model}:{tag}", OLLAMA, (blob,), root)


def _blob_of(manifest: Path, root: Path) -> Path | None:
    """The GGUF file that a manifest names; None for other files, and for one that is not there."""
    with suppress(GraphmlError), guarded(manifest, UsageError):
        for layer in plain_json(manifest, UsageError, _LARGEST_MANIFEST)["layers"]:
            digest = _DIGEST.fullmatch(layer["digest"])
            if layer["mediaType"] == _MODEL_LAYER and digest:
                blob = root / "blobs" / f"sha256-{digest[1]}"
                return blob if blob.is_file() else None
    return None


def _of_lm_studio() -> Iterator[OtherModel]:
    for root in (Path(text).expanduser() for text in ("~/.lmstudio/models", "~/.cache/lm-studio/models")):
        names = [path.relative_to(root).as_posix() for path in root.glob("*/*/*.gguf")]
        for files in models_of(names).values():
            yield OtherModel(f"{LM_STUDIO}:{files[0]}", LM_STUDIO, tuple(root / file for file in files), root)
