"""Keys that open a server: compared in constant time, and read again from their file on demand.

Knows keys; nothing of requests.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterable
from pathlib import Path

from graphml.errors import UsageError

LOG = logging.getLogger(__name__)


def keys_in(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line, without comments (#); UsageError for a file without any."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise UsageError("--api-key-file: the file has no keys")
    return tuple(dict.fromkeys(keys))


class ApiKeys:
    """The keys of a server. given: those that stay; path: a file of more, whose keys are `of_file` now."""

    def __init__(
        self, given: Iterable[str], path: Path | None = None, of_file: Iterable[str] | None = None
    ) -> None:
        self._given, self._path = tuple(given), path
        self._secret = secrets.token_bytes(32)
        self._digests = self._hashed(of_file or ())

    def __bool__(self) -> bool:
        """Whether a request needs one."""
        return bool(self._digests)

    def owner_of(self, key: str) -> str | None:
        """Whose key it is: a name that does not tell the key; None for nobody's."""
        digest, found = self._digest(key), False
        for known in self._digests:  # all of them, whatever is found
            found |= hmac.compare_digest(known, digest)
        return digest.hex()[:32] if found else None

    def reload(self) -> None:
        """Read the file again; where that fails, or it has no keys, those that were stay."""
        if self._path is None:
            return
        try:
            found = keys_in(self._path)
        except UsageError as error:
            LOG.warning("the keys stay as they were: %s", error)
            return
        self._digests = self._hashed(found)

    def _hashed(self, of_file: Iterable[str]) -> list[bytes]:
        return [self._digest(one) for one in dict.fromkeys((*self._given, *of_file))]

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode("utf-8", "replace"), hashlib.sha256)
