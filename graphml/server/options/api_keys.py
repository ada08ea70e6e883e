"""Keys that open a server, with what each may use: compared in constant time, read again on demand.

Knows keys and their file; nothing of requests.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from graphml.errors import UsageError
from graphml.server.options.key_limits import KeyLimits, KeyUse
from graphml.system.read_files import plain_text

LOG = logging.getLogger(__name__)
LARGEST_BYTES = 4 << 20
SETTINGS = tuple(field.name for field in fields(KeyLimits))


@dataclass(frozen=True)
class FileKey:
    """A key of a file: where it is, and what it may use."""

    key: str
    line: int
    limits: KeyLimits


def keys_in(path: Path) -> tuple[FileKey, ...]:
    """The keys of a file, one a line, each with settings behind it; lines that begin with # are comments.

    UsageError for a file without any, and for settings that are none: it names the line, never the key.
    """
    lines = [line.strip() for line in plain_text(path, UsageError, LARGEST_BYTES).splitlines()]
    keys: dict[str, FileKey] = {}
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            key, *settings = line.split()
            keys.setdefault(key, FileKey(key, number, _limits(settings, f"{path}, line {number}")))
    if not keys:
        raise UsageError(f"--api-key-file: {path}: the file has no keys")
    return tuple(keys.values())


def _limits(settings: list[str], where: str) -> KeyLimits:
    limits: dict[str, float] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in SETTINGS or name in limits:
            wanted = f"wanted {', '.join(SETTINGS)} once, each as NAME=NUMBER"
            raise UsageError(f"{where}: {wanted}; got {name!r:.60}")
        try:
            value = float(text) if name == "weight" else int(text)
        except ValueError:
            value = math.nan
        least = 0 if name in ("priority", "admin") else 1e-3 if name == "weight" else 1
        if not least <= value <= 1e9:
            raise UsageError(f"{where}: {name}: wanted a number from {least} to 1e9, got {text!r:.60}")
        limits[name] = value
    return KeyLimits(**limits)  # type: ignore[arg-type]


class ApiKeys:
    """The keys of a server. keys: those that stay; path: a file of more, whose keys are `of_file` now."""

    def __init__(
        self, keys: Iterable[str], path: Path | None = None, of_file: Iterable[FileKey] | None = None
    ) -> None:
        self._given, self._path = tuple(dict.fromkeys(keys)), path
        self._secret = secrets.token_bytes(32)
        self._places: dict[bytes, str] = {}
        self._uses: dict[str, KeyUse] = {}
        self._folders: dict[str, str] = {}
        self._read(of_file or ())

    def __bool__(self) -> bool:
        """Whether a request needs one."""
        return bool(self._places)

    def owner_of(self, key: str) -> str | None:
        """Whose key it is: a name that does not reveal the key; None for nobody's."""
        digest, matches = self._digest(key), False
        for known in self._places:  # all of them, whatever is found
            matches |= hmac.compare_digest(known, digest)
        return _name(digest) if matches else None

    def use_of(self, owner: str | None) -> KeyUse | None:
        """What an owner has used and may use; None for requests without a key, and for one that is gone."""
        return None if owner is None else self._uses.get(owner)

    def adopt(self, owner: str, folder: str, limits: KeyLimits) -> None:
        """Know an owner whose key another process has checked."""
        if owner not in self._uses:
            self._uses[owner] = KeyUse(limits)
        self._uses[owner].change(limits)
        self._folders[owner] = folder

    def folder_of(self, owner: str | None) -> str:
        """The name of a folder for what an owner keeps, the same in every process; "" for who has no key.

        An owner whose key is gone since has a folder of this process, never that of all.
        """
        return "" if owner is None else self._folders.get(owner, owner)

    def uses(self) -> Iterator[tuple[str, str, KeyUse]]:
        """Each key's place as metrics name it (a line of the file, or `given N`), its owner and its use."""
        for digest, place in self._places.items():
            yield place, _name(digest), self._uses[_name(digest)]

    def reload(self) -> None:
        """Read the file again; where that fails, or it has no keys, those that were stay."""
        if self._path is None:
            return
        try:
            keys = keys_in(self._path)
        except UsageError as error:
            LOG.warning("the keys stay as they were: %s", error)
            return
        self._read(keys)

    def _read(self, of_file: Iterable[FileKey]) -> None:
        """Other keys from now on; those that stay keep what they have used."""
        every = [(f"given {number}", key, KeyLimits(admin=1)) for number, key in enumerate(self._given, 1)]
        every += [(str(entry.line), entry.key, entry.limits) for entry in of_file]
        places: dict[bytes, str] = {}
        uses: dict[str, KeyUse] = {}
        folders: dict[str, str] = {}
        for place, key, limits in every:
            digest = self._digest(key)
            uses[_name(digest)] = use = self._uses.get(_name(digest)) or KeyUse()
            use.change(limits)
            places[digest] = place
            of_key = b"a folder of " + key.encode("utf-8", "replace")
            folders[_name(digest)] = hashlib.sha256(of_key).hexdigest()
        self._places, self._uses, self._folders = places, uses, folders

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode("utf-8", "replace"), hashlib.sha256)


def _name(digest: bytes) -> str:
    return digest.hex()[:32]
