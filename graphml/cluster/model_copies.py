"""The files of a model on a node: those at the same path, or a copy that was sent once, checked by its hash.

Knows paths, sizes and hashes; nothing of Ray or of what the files hold.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from graphml import settings
from graphml.errors import UsageError, WeightsError
from graphml.system.replaced_file import replacing

CHUNK = 8 << 20  # bytes that are sent at once
FOLDER = "sent"
BESIDE = (".json", ".jinja", ".model", ".txt")
"""Endings of what a folder of transformers holds besides its tensors."""
Read = Callable[[int, int], bytes]
"""Bytes of the file of that number from that offset on, at most CHUNK."""


@dataclass(frozen=True)
class FileFacts:
    """A file by its name within the model, its size and its hash."""

    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class ModelFiles:
    """A model by the path that it is opened from, and its files, by names below its folder."""

    path: Path
    is_folder: bool
    files: tuple[FileFacts, ...]

    @property
    def n_bytes(self) -> int:
        """Of all files."""
        return sum(file.n_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """Hash of all files and their names."""
        text = "\n".join(f"{file.name} {file.sha256}" for file in self.files)
        return hashlib.sha256(text.encode()).hexdigest()


def facts_of(path: Path, tensor_files: Sequence[Path]) -> ModelFiles:
    """What a node must have to open a model. tensor_files: those that hold its tensors."""
    paths = list(tensor_files)
    if path.is_dir():
        beside = sorted(file for file in path.rglob("*") if file.suffix in BESIDE and file.is_file())
        paths = [file for file in beside if file not in tensor_files] + paths
    root = path if path.is_dir() else path.parent
    files = [FileFacts(str(file.relative_to(root)), file.stat().st_size, file_digest(file)) for file in paths]
    return ModelFiles(path, path.is_dir(), tuple(files))


def local_copy(facts: ModelFiles, read: Read) -> Path:
    """The path of the model on this machine, with its files there; `read` sends those that are not.

    UsageError where there is no room for them, WeightsError where other bytes came.
    """
    if _is_here(facts, facts.path if facts.is_folder else facts.path.parent):
        return facts.path
    root = settings.cache_folder() / FOLDER / facts.digest[:32]
    path = root if facts.is_folder else root / facts.path.name
    if _is_here(facts, root):
        return path
    root.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(root).free) < facts.n_bytes:
        raise UsageError(f"{root}: wanted room for {facts.n_bytes} bytes of {facts.path}; {free} are free")
    for number, file in enumerate(facts.files):
        target = root / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(target, file, number, read)
    return path


def _receive(target: Path, file: FileFacts, number: int, read: Read) -> None:
    digest = hashlib.sha256()
    try:
        with replacing(target) as partial, partial.open("wb") as out:
            for offset in range(0, file.n_bytes, CHUNK):
                data = read(number, offset)
                digest.update(data)
                out.write(data)
            if digest.hexdigest() != file.sha256:
                raise WeightsError(f"{target}: wanted the hash {file.sha256}; got {digest.hexdigest()}")
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror or error}") from None


def _is_here(facts: ModelFiles, root: Path) -> bool:
    paths = [root / file.name for file in facts.files]
    sizes = [path.stat().st_size if path.is_file() else None for path in paths]
    return sizes == [file.n_bytes for file in facts.files] and all(
        file_digest(path) == file.sha256 for path, file in zip(paths, facts.files, strict=True)
    )


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, read once for as long as it does not change."""
    status = path.stat()
    return _hash_of(path, status.st_size, status.st_mtime_ns)


@cache
def _hash_of(path: Path, n_bytes: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_digest() -> str:
    """Hash of the source of graphml here: two nodes with the same one compute the same."""
    groups = [entries for entries in entry_points().groups if entries.startswith("graphml.")]
    packages = {entry.module.split(".")[0] for group in groups for entry in entry_points(group=group)}
    digest = hashlib.sha256()
    for package in sorted({"graphml"} | {name for name in packages if name.startswith("graphml_")}):
        spec = find_spec(package)
        for root in sorted(map(Path, (spec and spec.submodule_search_locations) or ())):
            for file in sorted(root.rglob("*.py")):
                digest.update(f"{package} {file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
