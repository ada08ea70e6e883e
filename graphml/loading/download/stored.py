"""Downloaded models: in our cache folder and in the hub's shared cache.

Lists and removes; downloads nothing and opens no model.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphml.errors import UsageError
from graphml.loading.download import cached
from graphml.loading.download.choice import fits, models_of
from graphml.loading.download.folders import (
    LOCK,
    PARTIAL,
    hub_folder,
    models_folder,
    partial_folder,
    sum_path,
)
from graphml.loading.download.lock import is_locked
from graphml.loading.download.reference import REFERENCE
from graphml.loading.download.short_names import MODELS, HubModel, WheelModel
from graphml.loading.download.wheel import lock_path
from graphml.weights.file_names import gguf_files, is_gguf, without_ending

OURS, SHARED, PARTLY = "graphml", "hub cache", "partial"


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine: its files, of which the first opens it, below the folder `root`.

    name: its name in commands. place: `OURS` or `SHARED`, or `PARTLY` for a partial download. repo, model: of
    a model of the hub, its repository and its files' name without ending.
    """

    name: str
    files: tuple[Path, ...]
    root: Path
    place: str
    repo: str = ""
    model: str = ""
    short_name: str | None = None

    @property
    def n_bytes(self) -> int:
        """The bytes of all files."""
        return sum(map(_bytes_of, self.files))


def stored_models() -> list[StoredModel]:
    """All stored models: ours, then those of the shared cache, then partial downloads."""
    return [*_wheels(), *_of_hub(), *_shared(), *_partial()]


def named(models: Iterable[StoredModel], name: str) -> list[StoredModel]:
    """The stored models that a name selects.

    A name is a short name, "user/repo" for all models of a repository, "user/repo:QUANT" or "user/repo:FILE"
    for those that match, or a listed path. UsageError if there is none.
    """
    every = list(models)
    match = REFERENCE.fullmatch(name)
    found = [
        one
        for one in every
        if name in (one.name, one.short_name)
        or any(name == str(file) for file in one.files)
        or (
            match is not None
            and one.repo == match["repo"]
            and (match["wanted"] is None or fits(one.model, match["wanted"]))
        )
    ]
    if not found:
        there = ", ".join(dict.fromkeys(one.name for one in every)) or "nothing"
        raise UsageError(f"model {name!r}: it is not among the downloaded ones; there is {there}")
    return found


def remove(model: StoredModel) -> int:
    """Remove a stored model and its notes; returns the freed bytes. Nothing outside its cache is touched.

    UsageError if a folder of its path is a link out of the cache, or if another process is downloading it.
    """
    for file in model.files:
        if not file.parent.resolve().is_relative_to(model.root.resolve()):
            raise UsageError(f"{file}: it is not in the cache {model.root} but in {file.parent.resolve()}")
        if model.place == PARTLY and is_locked(_lock_of(file)):
            raise UsageError(f"{file}: another process is downloading it")
    return sum(_remove_file(file, model) for file in model.files)


def _remove_file(file: Path, model: StoredModel) -> int:
    if model.place == SHARED:
        return cached.remove_cached(file)
    freed = 0 if file.is_symlink() else _bytes_of(file)
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
        return freed
    file.unlink()
    sum_path(file).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty
        for folder in file.relative_to(model.root).parents:
            if folder != Path():
                (model.root / folder).rmdir()
    return freed


def _bytes_of(file: Path) -> int:
    """The bytes of a file, or of all files below a folder; 0 for files that were removed meanwhile."""
    with contextlib.suppress(OSError):
        files = file.rglob("*") if file.is_dir() else [file]
        return sum(one.stat().st_size for one in files if one.is_file())
    return 0


def _lock_of(file: Path) -> Path:
    """The lock file that a process holds while it writes a partial download."""
    if file.suffix == PARTIAL:
        return file.with_name(f"{file.name.rsplit('.', 2)[0]}{LOCK}")
    return next(
        lock_path(one) for one in MODELS.values() if isinstance(one, WheelModel) and _left_of(file, one)
    )


def _wheels() -> list[StoredModel]:
    """Files from wheels, and other files beside them."""
    names = {one.file_name: name for name, one in MODELS.items() if isinstance(one, WheelModel)}
    root = models_folder()
    return [
        StoredModel(names.get(file.name, str(file)), (file,), root, OURS, short_name=names.get(file.name))
        for file in sorted(root.glob("*"))
        if is_gguf(file.name)
    ]


def _of_hub() -> list[StoredModel]:
    root = hub_folder()
    return [
        model
        for folder in sorted(root.glob("*/*/"))
        for model in _models(
            folder.relative_to(root).as_posix(),
            folder,
            [file.relative_to(folder).as_posix() for file in gguf_files(folder)],
            root,
            OURS,
        )
    ]


def _shared() -> list[StoredModel]:
    root = cached.shared_folder()
    return [
        model
        for one in cached.snapshots()
        for model in _models(one.repo, one.folder, one.files, root, SHARED)
    ]


def _models(repo: str, folder: Path, names: Sequence[str], root: Path, place: str) -> list[StoredModel]:
    short = {one.reference: name for name, one in MODELS.items() if isinstance(one, HubModel)}
    return [
        StoredModel(
            f"{repo}:{files[0]}",
            tuple(folder / file for file in files),
            root,
            place,
            repo,
            model,
            short.get(f"{repo}:{files[0]}"),
        )
        for model, files in models_of(names).items()
    ]


def _partial() -> list[StoredModel]:
    """Partial downloads, of the hub and of wheels."""
    root = partial_folder()
    hub = root / "hub"
    found = []
    for file in sorted(hub.rglob(f"*{PARTIAL}")):
        user, repo, *rest = file.relative_to(hub).parts
        name = "/".join(rest).rsplit(".", 2)[0]
        model = without_ending(name)
        found.append(StoredModel(f"{user}/{repo}:{name}", (file,), root, PARTLY, f"{user}/{repo}", model))
    for short, one in MODELS.items():
        if isinstance(one, WheelModel):
            left = sorted(file for file in root.glob("*") if _left_of(file, one))
            if left:
                found.append(StoredModel(short, tuple(left), root, PARTLY, short_name=short))
    return found


def _left_of(file: Path, known: WheelModel) -> bool:
    """Whether a file or folder is left from a killed download of a wheel."""
    return file.name.startswith((f"pip-{known.file_name}-", known.wheel_prefix))
