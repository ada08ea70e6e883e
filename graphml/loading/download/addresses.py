"""GGUF files at addresses of any server: `https://HOST/PATH.gguf`, kept below the folder of model files.

The place of a file has its scheme, host and path, so that a listed file has its address back. No token is
sent. Knows HTTP and names; nothing of a file's contents but that GGUF files begin with `GGUF`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, unquote_to_bytes, urljoin, urlsplit

from huggingface_hub.utils import WeakFileLock, build_hf_headers, hf_raise_for_status, http_stream_backoff

from graphml import settings
from graphml.errors import DownloadError, UsageError
from graphml.loading.download.cached import PARTIAL, Partial
from graphml.loading.download.reports import forbidden, with_progress
from graphml.loading.download.resumed import (
    TIMEOUT_S,
    RemoteFile,
    Report,
    bring_all,
    complete,
    distant_files,
    failed_request,
    unwritable,
)
from graphml.loading.download.wheel import models_folder, partial_folder
from graphml.system import cache_access
from graphml.weights.file_names import is_gguf, part_name
from graphml.weights.model_file import ModelFile
from graphml.weights.remote_header import open_header

Progress = Callable[[int, int | None], None]
MAGIC = b"GGUF"
MOST_REDIRECTS = 10
SCHEMES = ("https", "http")
# What Windows takes for a device, whatever follows the first dot.
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(?=\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class AddressFile(RemoteFile):
    """A file of `n_bytes` at `address`, which led to `url`.

    version: the server's ETag, else Last-Modified, empty without either: a partial download goes on only
    where it is the same.
    """

    address: str
    version: str

    @property
    def folder(self) -> Path:
        """The folder of the file's place."""
        return self.called.parent

    @property
    def called(self) -> Path:
        """The place of the file, complete or not."""
        return place_of(self.address)

    @property
    def partial(self) -> Path:
        """Its partial download."""
        version = hashlib.sha256(self.version.encode()).hexdigest()[:16]
        return self.called.with_name(f"{self.called.name}.{version}{PARTIAL}")

    def headers(self, start: int = 0, stop: int = 0) -> dict[str, str]:
        """With the condition that the file is still the same, which another is sent whole without."""
        condition = {} if self.version.startswith("W/") or not self.version else {"If-Range": self.version}
        usual = build_hf_headers(token=False, library_name="graphml")
        return {**usual, "Accept-Encoding": "identity", **condition, **super().headers(start, stop)}


def fetch_address(address: str, progress: Progress | None = None, offline: bool | None = None) -> Path:
    """Return the path of a GGUF file at an address, downloaded unless it is here; of a split model all parts.

    `address` is https://HOST/PATH.gguf, or http:// on this machine. `progress` is called with the bytes done
    and in all. offline: no server is asked; None: the environment's setting. Raises UsageError for another
    address, DownloadError with the address if it fails.
    """
    every, places = _parts(address), places_of(address)
    if not all(place.is_file() for place in places):
        if settings.offline() if offline is None else offline:
            raise DownloadError(f"model {address!r}: {forbidden()}")
        missing = [_probe(part) for part, place in zip(every, places, strict=True) if not place.is_file()]
        bring_all(missing, _bring, progress)
    return places[0]


def open_address_header(
    address: str, progress: Progress | None = None, offline: bool | None = None
) -> ModelFile | Path:
    """Open the header of a model at an address by range requests; one that is here: its path.

    Like `fetch_address`; nothing is stored.
    """
    is_offline = settings.offline() if offline is None else offline
    if is_offline or all(place.is_file() for place in places_of(address)):
        return fetch_address(address, progress, offline)
    return open_header(distant_files([_probe(part) for part in _parts(address)], _failed, progress))


def place_of(address: str) -> Path:
    """Where the file of an address is kept; UsageError for an address that is not of a GGUF file.

    A query is a folder, `~` and the first 16 hex digits of its SHA-256: other queries may mean other files.
    """
    split = _checked(address)
    port = "" if split.port in (None, {"https": 443, "http": 80}[split.scheme]) else f":{split.port}"
    *folders, name = split.path.split("/")[1:]
    query = [f"~{hashlib.sha256(split.query.encode()).hexdigest()[:16]}"] if split.query else []
    host = f"[{split.hostname}]" if ":" in str(split.hostname) else split.hostname
    names = [f"{host}{port}", *folders, *query, name]
    return models_folder().joinpath(split.scheme, *map(_file_name, names))


def places_of(address: str) -> list[Path]:
    """Where the file of an address is kept, of a split model all of them."""
    return [place_of(part) for part in _parts(address)]


def kept_files() -> list[tuple[str, Path]]:
    """The complete files of addresses, each with an address that means it."""
    return [(_address_of(file), file) for file in _files() if is_gguf(file.name)]


def kept_partials() -> list[Partial]:
    """The partial downloads of addresses; the name of each is its address."""
    ends = re.compile(rf"\.[0-9a-f]{{16}}{re.escape(PARTIAL)}")
    wholes = [(file, file.with_name(ends.sub("", file.name))) for file in _files() if ends.search(file.name)]
    return [Partial("", _address_of(whole), file, _lock(whole)) for file, whole in wholes]


def _files() -> list[Path]:
    roots = [models_folder() / scheme for scheme in SCHEMES]
    return sorted(file for root in roots for file in root.rglob("*") if file.is_file())


def _address_of(place: Path) -> str:
    scheme, *names = place.relative_to(models_folder()).parts
    return f"{scheme}://{'/'.join([unquote(names[0]), *names[1:]])}"


def _checked(address: str) -> SplitResult:
    """The parts of an address; UsageError where they are not those of a GGUF file that may be fetched."""
    try:
        split = urlsplit(address)
        host, _ = split.hostname, split.port
    except ValueError as error:
        raise UsageError(f"model {address!r}: {error}") from None
    wanted = "wanted https://HOST/PATH.gguf"
    if "@" in split.netloc:
        raise UsageError(f"model at {host}: {wanted}, without a user and a password")
    if split.scheme not in SCHEMES or not host or not is_gguf(split.path):
        raise UsageError(f"model {address!r}: {wanted}")
    if any(unquote_to_bytes(name) in (b"", b".", b"..") for name in split.path.split("/")[1:]):
        raise UsageError(f"model {address!r}: {wanted}, a path without '.', '..' and empty names")
    if split.scheme == "http" and not _is_this_machine(host):
        raise UsageError(f"model {address!r}: wanted https: http is only for this machine (localhost)")
    return split


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _file_name(text: str) -> str:
    """A name for every file system: percent-encoded but for letters, digits and `_.-~`, and no device's."""
    name = quote(unquote_to_bytes(text), safe="")
    if name.endswith("."):
        name = f"{name[:-1]}%2E"
    return (
        _DEVICE.sub(lambda match: f"%{ord(match[0][0]):02X}{match[0][1:]}", name, 1)
        if _DEVICE.match(name)
        else name
    )


def _parts(address: str) -> list[str]:
    """The addresses of all parts of a split model, the first one first; of another model its own."""
    split = _checked(address)
    part = part_name(split.path)
    if part is None:
        return [address]
    return [split._replace(path=part.part(number)).geturl() for number in range(1, part.count + 1)]


def _lock(place: Path) -> Path:
    return partial_folder() / f"{hashlib.sha256(_address_of(place).encode()).hexdigest()[:16]}.lock"


def _probe(address: str) -> AddressFile:
    """What the server says of the file, and that its first bytes are those of a GGUF file."""
    url = address
    for _ in range(MOST_REDIRECTS):
        asked = AddressFile(url, len(MAGIC), address, "")
        try:
            with http_stream_backoff("GET", url, headers=asked.headers(0, len(MAGIC)), timeout=TIMEOUT_S,
                                     follow_redirects=False) as response:  # fmt: skip
                if not response.has_redirect_location:
                    hf_raise_for_status(response)
                    return _described(address, url, response)
                url = urljoin(url, str(response.headers["Location"]))
        except DownloadError:
            raise
        except Exception as error:  # any error of the HTTP client, which depends on its version
            raise _failed(asked, failed_request(asked, error)) from error
        target = urlsplit(url)
        is_local = address.lower().startswith("http:") and _is_this_machine(target.hostname or "")
        if target.scheme != "https" and not (target.scheme == "http" and is_local):
            raise DownloadError(f"model {address!r}: it redirects to {url!r}; wanted https")
    raise DownloadError(f"model {address!r}: it redirects more than {MOST_REDIRECTS} times")


def _described(address: str, url: str, response: Any) -> AddressFile:
    first = b""
    for chunk in response.iter_raw():
        first += chunk
        if len(first) >= len(MAGIC):
            break
    headers = response.headers
    if wrong := _wrong_magic(first[: len(MAGIC)]):
        raise DownloadError(f"model {address!r}: {wrong} (type {headers.get('Content-Type', 'unknown')})")
    partly = response.status_code == 206
    n_bytes = (
        headers.get("Content-Range", "").rpartition("/")[2] if partly else headers.get("Content-Length", "")
    )
    if not n_bytes.isdecimal():
        raise DownloadError(f"model {address!r}: the server does not say how large it is")
    return AddressFile(url, int(n_bytes), address, headers.get("ETag") or headers.get("Last-Modified") or "")


def _wrong_magic(first: bytes) -> str | None:
    return None if first == MAGIC else f"wanted a GGUF file, which begins with {MAGIC!r}; got {first!r}"


def _bring(file: AddressFile, report: Report) -> None:
    try:
        with_progress(lambda guarded: _download(file, guarded), report)
    except DownloadError as error:
        raise _failed(file, error) from error


def _download(file: AddressFile, progress: Report) -> None:
    place, part = file.called, file.partial
    try:
        for folder in (file.folder, partial_folder()):
            cache_access.make(folder)
        with WeakFileLock(_lock(place)):
            if place.is_file():  # of another process
                return
            for other in file.folder.glob(f"{escape(place.name)}.*{PARTIAL}"):
                if other != part or not file.version:
                    other.unlink()
            complete(file, part, place, lambda out: _wrong_magic(out.read(len(MAGIC))), progress)
    except OSError as error:
        raise unwritable(file, error) from error


def _failed(file: AddressFile, error: DownloadError) -> DownloadError:
    return DownloadError(f"model {file.address!r}: {error}")
