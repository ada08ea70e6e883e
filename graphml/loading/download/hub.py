"""Models of the Hugging Face hub, or of a server with its protocol: finds, downloads, or reads headers.

huggingface-hub, a dependency of the tokenizers, lists repositories and knows addresses, tokens and proxies;
it is loaded only here and in modules called from here. Knows of a file's contents only the quantisation in
its name, and the index of a folder's weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants, errors

from graphml import settings
from graphml.errors import DownloadError
from graphml.loading.download import cached
from graphml.loading.download.choice import RepoReference, choose, is_safe, models_of, read_reference
from graphml.loading.download.reports import forbidden, reason_of, unreachable
from graphml.loading.download.resumed import (
    TIMEOUT_S,
    AnsweredError,
    HubFile,
    Report,
    bring,
    bring_all,
    distant_files,
)
from graphml.loading.huggingface.folder import CONFIG, INDEX, has_weights, read_index
from graphml.weights import ModelFile
from graphml.weights.remote_header import open_header

COMMIT, SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")

Progress = Callable[[int, int | None], None]


def fetch_hub(
    reference: str,
    endpoint: str | None = None,
    progress: Progress | None = None,
    offline: bool | None = None,
) -> Path:
    """Return the path of a model from the hub, downloading what is missing into huggingface-hub's cache.

    It is a GGUF file, the first part of a split one, or, where a repository has none, the folder of a model
    of transformers. `reference` is "user/repo", "user/repo:QUANT" (matched without regard to case; Q4_K_M,
    else the first file, if left out) or "user/repo:FILE.gguf". `endpoint` is the server's address, by default
    huggingface-hub's own. If the server cannot be reached, or if `offline` (None: the environment's
    setting), files of the cache are used. `progress` is called with the bytes done and in all. Raises
    UsageError for an unusable reference, DownloadError with the choices, or with the reason, if it fails.
    """
    wanted = read_reference(reference)
    listing = _listing(wanted, endpoint, offline)
    if isinstance(listing, Path):
        return listing
    names = choose(list(listing.listed), wanted.wanted, wanted.text)
    if INDEX in names:
        _bring_all(wanted, [listing.file(name) for name in names], None)
        shards = sorted(read_index(listing.file(INDEX).path))
        missing = [name for name in shards if name not in listing.listed]
        if missing:
            raise DownloadError(f"{wanted.called}: the repository lacks {missing[0]}, which {INDEX} names")
        names += shards
    _bring_all(wanted, [listing.file(name) for name in names], progress)
    first = listing.file(names[0]).path
    return first.parent if names[0] == CONFIG else first


def open_hub_header(
    reference: str, endpoint: str | None = None, progress: Progress | None = None, offline: bool | None = None
) -> ModelFile | Path:
    """Open the header of a GGUF model of the hub by range requests; a model in the cache: its path.

    Like `fetch_hub`; nothing is stored, and the data of tensors are not read.
    """
    wanted = read_reference(reference)
    listing = _listing(wanted, endpoint, offline)
    if isinstance(listing, Path):
        return listing
    names = choose(list(listing.listed), wanted.wanted, wanted.text)
    first = listing.file(names[0]).path
    if names[0] == CONFIG:
        if not has_weights(first.parent):
            raise DownloadError(
                f"{wanted.called}: it is a folder of safetensors, of which no header is read from afar: "
                f"`graphml pull {wanted.text}` downloads it"
            )
        return first.parent
    if all(listing.file(name).is_here for name in names):
        return first
    files = [listing.file(name) for name in names]
    return open_header(distant_files(files, lambda file, error: _failed(wanted, file, error), progress))


def _bring_all(wanted: RepoReference, files: list[HubFile], progress: Progress | None) -> None:
    def named(file: HubFile, report: Report) -> None:
        try:
            bring(file, report)
        except DownloadError as error:
            raise _failed(wanted, file, error) from error

    bring_all(files, named, progress)


def _listing(wanted: RepoReference, endpoint: str | None, offline: bool | None) -> Path | _Listing:
    """What the hub lists; the path of a cached model if the hub is not, or cannot be, asked."""
    if settings.offline() if offline is None else offline:
        return _kept(wanted, None)
    endpoint = endpoint or constants.ENDPOINT
    host = urlsplit(endpoint).netloc
    try:
        hub = huggingface_hub.HfApi(endpoint=endpoint)
        listed: Any = hub.model_info(wanted.repo, files_metadata=True, timeout=TIMEOUT_S)
    except Exception as error:  # any error of the HTTP client, which depends on its version
        reason = reason_of(error)
        if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
            raise DownloadError(
                f"{wanted.called}: {host} has no such repository, or not for everybody ({reason}); "
                "a token for those of yours: HF_TOKEN"
            ) from error
        if isinstance(error, errors.HfHubHTTPError):
            return _kept(wanted, DownloadError(f"{wanted.called}: {host}: {reason}"))
        return _kept(wanted, DownloadError(f"{wanted.called}: {unreachable(host, reason, 'HF_ENDPOINT')}"))
    commit = str(listed.sha)
    if COMMIT.fullmatch(commit) is None:
        raise DownloadError(f"{wanted.called}: {host} names no revision of it; wanted 40 hexadecimal digits")
    by_name = {sibling.rfilename: sibling for sibling in listed.siblings or [] if is_safe(sibling.rfilename)}
    return _Listing(wanted, commit, endpoint, by_name)


@dataclass(frozen=True)
class _Listing:
    """What the hub lists of a revision: by names that are safe to write. Files are checked when used."""

    wanted: RepoReference
    commit: str
    endpoint: str
    listed: Mapping[str, Any]

    def file(self, name: str) -> HubFile:
        sibling, called = self.listed[name], f"{self.wanted.called}: {name}"
        if not isinstance(sibling.size, int) or sibling.size < 0:
            raise DownloadError(f"{called}: the server does not say how large it is")
        sha256 = str(sibling.lfs.sha256).lower() if sibling.lfs is not None and sibling.lfs.sha256 else None
        blob = sha256 or str(sibling.blob_id)
        if (SHA256 if sha256 else COMMIT).fullmatch(blob) is None:
            raise DownloadError(f"{called}: the server's sum of it is none")
        repo = self.wanted.repo
        url = huggingface_hub.hf_hub_url(repo, name, revision=self.commit, endpoint=self.endpoint)
        return HubFile(url, sibling.size, repo, self.commit, name, sha256, blob)


def _kept(wanted: RepoReference, error: DownloadError | None) -> Path:
    """The path of a cached model; raises `error` if there is none, or the error of offline mode."""
    unfit: DownloadError | None = None
    for snapshot in cached.snapshots(wanted.repo):
        try:
            name = choose(snapshot.files, wanted.wanted, wanted.text)[0]
        except DownloadError as none:
            if models_of(snapshot.files):
                unfit = unfit or none
            continue
        if name != CONFIG:
            return snapshot.folder / name
        if has_weights(snapshot.folder):
            return snapshot.folder
    if error is not None and unfit is None:
        raise error
    asked = "offline" if error is None else "the server did not answer"
    if unfit is not None:
        raise DownloadError(f"{unfit} ({asked}: of what was downloaded before)") from error
    raise DownloadError(f"{wanted.called}: {forbidden()}")


def _failed(wanted: RepoReference, file: HubFile, error: DownloadError) -> DownloadError:
    """The error of a download that failed half-way, which names the model and the file."""
    advice = ""
    if isinstance(error, AnsweredError) and error.status in (401, 403):
        server = f"{urlsplit(file.url).scheme}://{file.host}"
        advice = f": accept the terms on its page {server}/{wanted.repo}, and set HF_TOKEN to your token"
    return DownloadError(f"{wanted.called}: {file.name}: {error}{advice}")
