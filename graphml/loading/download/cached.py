"""The Hugging Face hub's shared cache, with downloads of other programs.

Its layout is huggingface-hub's; it is read and cleaned here, never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.file_download import repo_folder_name

from graphml.weights.file_names import is_gguf


@dataclass(frozen=True)
class Snapshot:
    """One revision of a repository in the shared cache, and its downloaded GGUF files."""

    repo: str
    commit: str
    folder: Path
    files: tuple[str, ...]
    modified: float


def shared_folder() -> Path:
    """The folder of the cache: `HF_HUB_CACHE`, else in `HF_HOME`, like huggingface-hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def snapshots(repo: str | None = None) -> list[Snapshot]:
    """The revisions with GGUF files, of one repository or of all, the newest first."""
    try:
        found = huggingface_hub.scan_cache_dir(shared_folder())
    except errors.CacheNotFound:
        return []
    listed = [
        _snapshot(one.repo_id, revision)
        for one in found.repos
        if one.repo_type == "model" and repo in (None, one.repo_id)
        for revision in one.revisions
    ]
    return sorted((one for one in listed if one.files), key=lambda one: (-one.modified, one.repo))


def _snapshot(repo: str, revision: Any) -> Snapshot:
    folder = Path(revision.snapshot_path)
    names = sorted(
        Path(file.file_path).relative_to(folder).as_posix()
        for file in revision.files
        if is_gguf(str(file.file_name))
    )
    return Snapshot(repo, str(revision.commit_hash), folder, tuple(names), float(revision.last_modified))


def is_cached(repo: str, name: str) -> bool:
    """Whether any revision of a repository in the cache has the file."""
    folder = repo_folder_name(repo_id=repo, repo_type="model")
    found = (shared_folder() / folder / "snapshots").glob(f"*/{escape(name)}")
    return any(path.is_file() for path in found)


def cached_parts(repo: str, commit: str, names: list[str]) -> list[Path] | None:
    """The paths of files of a revision in the cache; None unless all are there."""
    found = [huggingface_hub.try_to_load_from_cache(repo, name, shared_folder(), commit) for name in names]
    return (
        [Path(path) for path in found if isinstance(path, str)]
        if all(isinstance(path, str) for path in found)
        else None
    )


def remove_cached(file: Path) -> int:
    """Remove a file of a snapshot, and its bytes if no other revision has them; returns the freed bytes."""
    blob = file.resolve()
    owner = file
    while owner.parent.name != "snapshots":
        owner = owner.parent
    repository = owner.parent.parent
    file.unlink()
    if blob == file or not blob.is_relative_to(repository.resolve()):
        return 0  # bytes outside the cache stay there
    others = (repository / "snapshots").rglob("*")
    if any(other.is_symlink() and other.resolve() == blob for other in others):
        return 0
    size = blob.stat().st_size
    blob.unlink()
    return size
