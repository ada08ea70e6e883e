"""Downloaded models: of the hub in its shared cache, of wheels and addresses in our cache folder.

Lists and removes; downloads nothing and opens no model.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from graphml.errors import UsageError
from graphml.loading.download import addresses, cached
from graphml.loading.download.choice import REFERENCE, fits, folder_files, is_address, models_of
from graphml.loading.download.other_programs import LM_STUDIO, OLLAMA, other_models
from graphml.loading.download.short_names import MODELS, HubModel, PackagedModel, WheelModel
from graphml.loading.download.wheel import lock_path, models_folder, partial_folder
from graphml.loading.huggingface.folder import CONFIG, has_weights
from graphml.weights.file_names import is_gguf, part_name, without_ending


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file lock `path` now."""
    from filelock import FileLock, Timeout  # takes longer to import than all of this folder

    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


OURS, SHARED, PARTLY, PACKAGED = "graphml", "hub cache", "partial", "this package"


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine: its files, of which the first opens it, below the folder `root`.

    name: its name in commands. place: `OURS` or `SHARED`, `PARTLY` for a partial download, or
    another program. repo, model: of a model of the hub, its repository and its files' name without ending.
    lock: of a partial download, the file that a process locks while it writes it.
    """

    name: str
    files: tuple[Path, ...]
    root: Path
    place: str
    repo: str = ""
    model: str = ""
    short_name: str | None = None
    lock: Path | None = None

    @property
    def path(self) -> Path:
        """What opens it: its first file, or the folder of a model of transformers."""
        return self.files[0].parent if self.files[0].name == CONFIG else self.files[0]

    @property
    def n_bytes(self) -> int:
        """The bytes of all files."""
        return sum(map(_bytes_of, self.files))


def stored_models() -> list[StoredModel]:
    """All stored models: ours, those of the shared cache, partial downloads, those of other programs."""
    return [*_wheels(), *_addressed(), *_shared(), *_partial(), *_others()]


def packaged_models() -> list[StoredModel]:
    """Those that the package brings along, which are not downloaded and cannot be removed."""
    return [
        StoredModel(name, (known.path,), known.path.parent, PACKAGED, short_name=name)
        for name, known in MODELS.items()
        if isinstance(known, PackagedModel)
    ]


def named(models: Iterable[StoredModel], name: str) -> list[StoredModel]:
    """The stored models that a name selects.

    A name is a short name, "user/repo" for all models of a repository, "user/repo:QUANT" or "user/repo:FILE"
    for those that match, or a listed path. UsageError if there is none.
    """
    every = list(models)
    places = addresses.places_of(name) if is_address(name) else []
    match = REFERENCE.fullmatch(name)
    selected = [
        stored
        for stored in every
        if name in (stored.name, stored.short_name)
        or any(name == str(file) or file in places for file in stored.files)
        or (
            match is not None
            and stored.repo == match["repo"]
            and (match["wanted"] is None or fits(stored.model, match["wanted"]))
        )
    ]
    if not selected:
        there = ", ".join(dict.fromkeys(stored.name for stored in every)) or "nothing"
        raise UsageError(f"model {name!r}: it is not among the downloaded ones; there is {there}")
    return selected


def remove(model: StoredModel) -> int:
    """Remove a stored model and its notes; returns the freed bytes. Nothing outside its cache is touched.

    UsageError if a folder of its path is a link out of the cache, or if another process is downloading it.
    """
    if model.place in (OLLAMA, LM_STUDIO):
        raise UsageError(f"{model.name}: it is {model.place}'s; wanted that program to remove it")
    for file in model.files:
        if not file.parent.resolve().is_relative_to(model.root.resolve()):
            raise UsageError(f"{file}: it is not in the cache {model.root} but in {file.parent.resolve()}")
        if model.lock is not None and is_locked(model.lock):
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
    with contextlib.suppress(OSError):  # not empty
        for folder in file.relative_to(model.root).parents[:-1]:
            (model.root / folder).rmdir()
    return freed


def _bytes_of(file: Path) -> int:
    """The bytes of a file, or of all files below a folder; 0 for files that were removed meanwhile."""
    with contextlib.suppress(OSError):
        files = file.rglob("*") if file.is_dir() else [file]
        return sum(path.stat().st_size for path in files if path.is_file())
    return 0


def _wheels() -> list[StoredModel]:
    """Files from wheels, and other files beside them."""
    names = {model.file_name: name for name, model in MODELS.items() if isinstance(model, WheelModel)}
    root = models_folder()
    return [
        StoredModel(names.get(file.name, str(file)), (file,), root, OURS, short_name=names.get(file.name))
        for file in sorted(root.glob("*"))
        if is_gguf(file.name)
    ]


def _addressed() -> list[StoredModel]:
    """Files of addresses; a split model under the address of its first part."""
    models: dict[str, list[tuple[str, Path]]] = {}
    for address, file in addresses.kept_files():
        part = part_name(address)
        models.setdefault(part.model if part else address, []).append((address, file))
    return [
        StoredModel(
            parts[0][0], tuple(file for _, file in parts), models_folder(),
            PARTLY if (part := part_name(parts[0][0])) and len(parts) < part.count else OURS,
        )
        for parts in models.values()
    ]  # fmt: skip


def _shared() -> list[StoredModel]:
    short = {model.reference: name for name, model in MODELS.items() if isinstance(model, HubModel)}
    root = cached.shared_folder()
    stored = []
    for snapshot in cached.snapshots():
        models = models_of(snapshot.files)
        for model, files in models.items():
            name = f"{snapshot.repo}:{files[0]}"
            paths = tuple(snapshot.folder / file for file in files)
            stored.append(StoredModel(name, paths, root, SHARED, snapshot.repo, model, short.get(name)))
        if folder_files(snapshot.files) and has_weights(snapshot.folder):
            others = set(snapshot.files).difference(*models.values(), {CONFIG})
            paths = tuple(snapshot.folder / file for file in (CONFIG, *sorted(others)))
            stored.append(StoredModel(snapshot.repo, paths, root, SHARED, snapshot.repo))
    return stored


def _partial() -> list[StoredModel]:
    """Partial downloads, of the hub, of addresses and of wheels."""
    stored = []
    for partial in cached.partials():
        name, model = f"{partial.repo}:{partial.name}", without_ending(partial.name)
        root = cached.shared_folder()
        stored.append(
            StoredModel(name, (partial.path,), root, PARTLY, partial.repo, model, lock=partial.lock)
        )
    stored += [
        StoredModel(partial.name, (partial.path,), models_folder(), PARTLY, lock=partial.lock)
        for partial in addresses.kept_partials()
    ]
    root = partial_folder()
    for short, known in MODELS.items():
        if isinstance(known, WheelModel):
            left = tuple(sorted(file for file in root.glob("*") if _left_of(file, known)))
            if left:
                lock = lock_path(known)
                stored.append(StoredModel(short, left, root, PARTLY, short_name=short, lock=lock))
    return stored


def _others() -> list[StoredModel]:
    return [StoredModel(other.name, other.files, other.root, other.program) for other in other_models()]


def _left_of(file: Path, known: WheelModel) -> bool:
    """Whether a file or folder is left from a killed download of a wheel."""
    return file.name.startswith((f"pip-{known.file_name}-", known.wheel_prefix))
