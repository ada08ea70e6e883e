"""Bytes of a file on a server, resumed if interrupted; those of the hub in huggingface-hub's cache, checked.

huggingface-hub's `http_get` fetches the bytes. Its `hf_hub_download` forgets them when it is interrupted,
writes as many as a server sends, and compares no sums over HTTP. The layout of files of the hub is that of
its cache: the bytes in `blobs` under their sum, a link in `snapshots`. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from huggingface_hub import errors
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (
    WeakFileLock,
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
    tqdm,
)

from graphml.errors import DownloadError
from graphml.loading.download.cached import partial_of, repository
from graphml.loading.download.reports import reason_of, unreachable, with_progress
from graphml.system.pages import let_go
from graphml.weights.remote_header import DistantFile

TIMEOUT_S = 20.0
MOST_BYTES_A_REQUEST = 32 << 30  # servers before large files refuse more than 50 GB in one answer


class AnsweredError(DownloadError):
    """A server answered with something other than the requested bytes; `status` is HTTP's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class RemoteFile(ABC):
    """A file of `n_bytes` at `url`. mirror: the variable that names another server, if there is one."""

    mirror: ClassVar[str] = ""
    url: str
    n_bytes: int

    @property
    def host(self) -> str:
        """The server's name, with its port if the address has one."""
        return urlsplit(self.url).netloc

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where it is written, for errors."""

    @property
    @abstractmethod
    def called(self) -> Path:
        """Its name in errors; the file name is that of the file."""

    def headers(self, start: int = 0, stop: int = 0) -> dict[str, str]:
        """Headers of requests for the whole file, or for the bytes from `start` up to `stop`."""
        return {"Range": f"bytes={start}-{stop - 1}"} if stop else {}


F = TypeVar("F", bound=RemoteFile)
Report = Callable[[int], None]


@dataclass(frozen=True)
class HubFile(RemoteFile):
    """A file of `n_bytes` in one revision of a repository.

    sha256: of its bytes, as the hub lists it for large files; blob_id: git's hash, for others.
    """

    mirror: ClassVar[str] = "HF_ENDPOINT"
    repo: str
    commit: str
    name: str
    sha256: str | None
    blob_id: str

    @property
    def folder(self) -> Path:
        """The repository's folder."""
        return repository(self.repo)

    @property
    def called(self) -> Path:
        """The file below the repository's name."""
        return Path(self.repo, self.name)

    def headers(self, start: int = 0, stop: int = 0) -> dict[str, str]:
        """With the token, if there is one."""
        return {**build_hf_headers(library_name="graphml"), **super().headers(start, stop)}

    @property
    def path(self) -> Path:
        """The complete file: a link to the blob."""
        return repository(self.repo) / "snapshots" / self.commit / self.name

    @property
    def blob(self) -> Path:
        """The file's bytes, which revisions share."""
        return repository(self.repo) / "blobs" / (self.sha256 or self.blob_id)

    @property
    def is_here(self) -> bool:
        """Whether the complete file is in the cache."""
        return _has(self.path, self.n_bytes)


def bring_all(
    files: Sequence[F],
    bring: Callable[[F, Report], None],
    progress: Callable[[int, int | None], None] | None,
) -> None:
    """Call bring(file, report) for each file; `progress` is called with the bytes done and in all."""
    total, done = sum(file.n_bytes for file in files), 0
    for file in files:

        def report(here: int, before: int = done) -> None:
            if progress is not None:
                progress(before + here, total)

        bring(file, report)
        done += file.n_bytes


def distant_files(
    files: Sequence[F],
    failed: Callable[[F, DownloadError], DownloadError],
    progress: Callable[[int, int | None], None] | None,
) -> list[DistantFile]:
    """Files to read ranges of; `failed` makes the error of one that cannot be read."""
    done = 0

    def distant(file: F) -> DistantFile:
        def read(start: int, stop: int) -> bytes:
            nonlocal done
            try:
                held = read_range(file, start, stop)
            except DownloadError as error:
                raise failed(file, error) from error
            done += len(held)
            if progress is not None:
                progress(done, None)
            return held

        return DistantFile(file.called, file.n_bytes, read)

    return [distant(file) for file in files]


def bring(file: HubFile, progress: Report) -> None:
    """Download the file unless it is in the cache; progress is called with the bytes there are so far.

    Concurrent callers, in any process, wait for one another. Raises DownloadError for an unreachable server,
    wrong bytes, and a cache that cannot be written; an error of `progress` comes out unchanged.
    """
    if not file.is_here:
        with_progress(lambda guarded: _bring(file, guarded), progress)


def _bring(file: HubFile, progress: Report) -> None:
    partial = partial_of(file.repo, file.blob.name, file.name)
    try:
        for folder in (file.path.parent, partial.path.parent, partial.lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(partial.lock):
            if not _has(file.blob, file.n_bytes):
                for other in partial.path.parent.glob(f"*.{escape(partial.path.name.partition('.')[2])}"):
                    if other != partial.path:  # of another version
                        other.unlink()
                complete(file, partial.path, file.blob, lambda out: _wrong_sum(file, out), progress)
            _link(file)
    except OSError as error:
        raise unwritable(file, error) from error


def _wrong_sum(file: HubFile, out: FileIO) -> str | None:
    came = hashlib.file_digest(out, _digest_of(file)).hexdigest()
    kind = "sha256" if file.sha256 else "git's hash"
    wanted = f"wanted {file.n_bytes} bytes with {kind} {file.blob.name}"
    return None if came == file.blob.name else f"{wanted}, got {came}"


def _digest_of(file: HubFile) -> Callable[[], Any]:
    """What begins the digest that the blob is named after."""
    if file.sha256:
        return hashlib.sha256
    return lambda: hashlib.sha1(f"blob {file.n_bytes}\0".encode(), usedforsecurity=False)


def fetch_missing(out: PartialFile) -> None:
    """Fetch the bytes that are missing in a partial download; DownloadError where that fails."""
    file = out.file
    done, free = out.tell(), shutil.disk_usage(out.path.parent).free
    if file.n_bytes - done > free:
        raise DownloadError(
            f"wanted {file.n_bytes - done} bytes more on the disk of {out.path.parent}, where {free} are free"
        )
    out.progress(done)
    try:
        if file.n_bytes <= MOST_BYTES_A_REQUEST:
            http_get(file.url, out, resume_size=done, headers=file.headers(), expected_size=file.n_bytes,
                     tqdm_class=_Silent)  # fmt: skip
        while (done := out.tell()) < file.n_bytes:
            stop = min(done + MOST_BYTES_A_REQUEST, file.n_bytes)
            http_get(file.url, out, headers=file.headers(done, stop), expected_size=stop - done,
                     tqdm_class=_Silent)  # fmt: skip
    except DownloadError:
        raise
    except Exception as error:  # any error of the HTTP client, which depends on its version
        raise failed_request(file, error) from error


def complete(
    file: RemoteFile, part: Path, place: Path, wrong: Callable[[FileIO], str | None], progress: Report
) -> None:
    """Fetch what is missing of a partial download, and give it its name once it is on the disk.

    wrong: what is wrong with all the bytes, which are removed then; None for nothing.
    """
    with PartialFile(file, part, progress) as out:
        fetch_missing(out)
        os.fsync(out.fileno())
        out.seek(0)
        reason = wrong(out)
        let_go(out.fileno())
    if reason is not None:
        part.unlink()
        raise DownloadError(reason)
    part.replace(place)


class PartialFile(FileIO):
    """A partial download, open at its end: reports its size, and holds no more bytes than the file has."""

    def __init__(self, file: RemoteFile, path: Path, progress: Report) -> None:
        super().__init__(path, "a+")
        self.file, self.path, self.progress = file, path, progress
        if self.seek(0, os.SEEK_END) > file.n_bytes:
            self.truncate(0)
            self.seek(0)

    def write(self, chunk: Any) -> int:
        """Append a chunk; DownloadError where the server sends too much or the disk takes it not."""
        if self.tell() + len(chunk) > self.file.n_bytes:
            raise DownloadError(
                f"{self.file.host} sends more than the {self.file.n_bytes} bytes it announced"
            )
        left = memoryview(chunk)
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:
            raise unwritable(self.file, error) from error
        self.progress(self.tell())
        return len(chunk)


class _Silent(tqdm):  # type: ignore[misc]
    """huggingface-hub's progress bar, never shown."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "disable": True})


def _link(file: HubFile) -> None:
    """Put the file into its snapshot, and name the revision as the newest for other programs."""
    file.path.unlink(missing_ok=True)
    try:
        file.path.symlink_to(os.path.relpath(file.blob, file.path.parent))
    except OSError:  # no links here: huggingface-hub moves the bytes then, too
        file.blob.replace(file.path)
    main = repository(file.repo) / "refs" / "main"
    main.parent.mkdir(exist_ok=True)
    main.write_text(file.commit, encoding="ascii")


def read_range(file: RemoteFile, start: int, stop: int) -> bytes:
    """The bytes from `start` up to `stop`. Nothing is stored.

    A server that ignores ranges sends the file from its beginning: bytes before `start` are dropped. Raises
    DownloadError if the server answers with other bytes, or not at all.
    """
    headers = {**file.headers(start, stop), "Accept-Encoding": "identity"}
    held = bytearray()
    if stop == start:
        return b""
    try:
        with http_stream_backoff("GET", file.url, headers=headers, timeout=TIMEOUT_S) as response:
            hf_raise_for_status(response)
            unwanted = start if response.status_code == 200 else 0
            came = str(response.headers.get("Content-Range", ""))[:80]
            if response.status_code == 206 and not came.startswith(f"bytes {start}-"):
                raise DownloadError(f"{file.host} sends {came!r}; wanted bytes {start} on")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise DownloadError(f"{file.host} sends an encoding that was not asked for")
            for chunk in response.iter_raw():
                held += chunk[unwanted : unwanted + stop - start - len(held)]
                unwanted -= min(unwanted, len(chunk))
                if len(held) == stop - start:
                    return bytes(held)
    except DownloadError:
        raise
    except Exception as error:  # as above
        raise failed_request(file, error) from error
    raise DownloadError(f"{file.host} ends its answer at byte {start + len(held)}; wanted {stop}")


def failed_request(file: RemoteFile, error: Exception) -> DownloadError:
    """The error of a request that failed: with the status that the server answered, or why it did not."""
    if isinstance(error, errors.HfHubHTTPError):
        status = int(error.response.status_code)
        return AnsweredError(f"{file.host} answers {status}", status)
    return DownloadError(unreachable(file.host, reason_of(error), file.mirror))


def unwritable(file: RemoteFile, error: OSError) -> DownloadError:
    """The error of a cache that cannot be written."""
    return DownloadError(f"cannot write to {file.folder}: {error}")


def _has(path: Path, n_bytes: int) -> bool:
    with contextlib.suppress(OSError):
        return path.is_file() and path.stat().st_size == n_bytes
    return False
