"""The Hugging Face hub's shared cache: what this and other programs downloaded, and how it is removed.

Its layout is huggingface-hub's. Partial downloads of graphml lie beside the blobs.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.file_download import repo_folder_name

PARTIAL = ".graphml.part"
LONGEST_NAME = 120


@dataclass(frozen=True)
class Snapshot:
    """One revision of a repository, and the names of its downloaded files."""

    repo: str
    folder: Path
    files: tuple[str, ...]
    modified: float


@dataclass(frozen=True)
class Partial:
    """A partial download of graphml, and the lock that a process holds while it writes it."""

    repo: str
    name: str
    path: Path
    lock: Path


def shared_folder() -> Path:
    """The folder of the cache: `HF_HUB_CACHE`, else in `HF_HOME`, like huggingface-hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repository(repo: str) -> Path:
    """The folder of a repository."""
    return shared_folder() / str(repo_folder_name(repo_id=repo, repo_type="model"))


def snapshots(repo: str | None = None) -> list[Snapshot]:
    """The revisions of one repository or of all, the newest first."""
    try:
        cache = huggingface_hub.scan_cache_dir(shared_folder())
    except errors.CacheNotFound:
        return []
    listed = [
        _snapshot(repository.repo_id, revision)
        for repository in cache.repos
        if repository.repo_type == "model" and repo in (None, repository.repo_id)
        for revision in repository.revisions
    ]
    return sorted(listed, key=lambda snapshot: (-snapshot.modified, snapshot.repo))


def _snapshot(repo: str, revision: Any) -> Snapshot:
    folder = Path(revision.snapshot_path)
    names = sorted(Path(file.file_path).relative_to(folder).as_posix() for file in revision.files)
    return Snapshot(repo, folder, tuple(names), float(revision.last_modified))


def is_cached(repo: str, name: str) -> bool:
    """Whether any revision of a repository in the cache has the file."""
    return any(path.is_file() for path in (repository(repo) / "snapshots").glob(f"*/{escape(name)}"))


def partial_of(repo: str, blob: str, name: str) -> Partial:
    """The partial download of a file with that blob."""
    flat = name.replace("/", "--")[-LONGEST_NAME:]
    return _partial(repo, repository(repo) / "blobs" / f"{blob}.{flat}{PARTIAL}")


def partials() -> list[Partial]:
    """All partial downloads."""
    return [
        _partial("/".join(path.parent.parent.name.split("--")[1:]), path)
        for path in sorted(shared_folder().glob(f"models--*/blobs/*{PARTIAL}"))
    ]


def _partial(repo: str, path: Path) -> Partial:
    flat = path.name.partition(".")[2].removesuffix(PARTIAL)
    lock = shared_folder() / ".locks" / path.parent.parent.name / f"{flat}.graphml.lock"
    return Partial(repo, flat.replace("--", "/"), path, lock)


def remove_cached(file: Path) -> int:
    """Remove a file of a snapshot, and its bytes if no other revision has them; returns the freed bytes.

    Folders that are empty then go, too.
    """
    blob, owner = file.resolve(), file
    while owner.parent.name != "snapshots":
        owner = owner.parent
    repository = owner.parent.parent
    file.unlink()
    freed = 0
    others = (repository / "snapshots").rglob("*")
    if (  # bytes outside the cache stay there
        blob != file
        and blob.is_relative_to(repository.resolve())
        and not any(other.is_symlink() and other.resolve() == blob for other in others)
    ):
        freed = blob.stat().st_size
        blob.unlink()
    with contextlib.suppress(OSError):  # not empty
        for folder in file.relative_to(owner.parent).parents:
            (owner.parent / folder).rmdir()
        if not any((repository / "blobs").glob("*")):
            shutil.rmtree(repository)
    return freed
