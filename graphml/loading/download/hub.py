"""Models of the Hugging Face hub, or of a server with its protocol: finds, downloads, or reads headers.

huggingface-hub, a dependency of the tokenizers, lists repositories and knows addresses, tokens and proxies;
it is loaded only here and in modules called from here. Knows of a file's contents only the quantisation in
its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.utils import build_hf_headers

from graphml import settings
from graphml.errors import DownloadError
from graphml.loading.download import cached, checked_download
from graphml.loading.download.advice import forbidden, reason_of, unreachable
from graphml.loading.download.checked_download import HubFile
from graphml.loading.download.choice import choose, is_safe
from graphml.loading.download.folders import hub_folder
from graphml.loading.download.http_ranges import TIMEOUT_S, AnsweredError, WebFile, read_range
from graphml.loading.download.reference import Reference, read_reference
from graphml.weights import ModelFile, open_model
from graphml.weights.file_names import gguf_files
from graphml.weights.remote_header import DistantFile, open_header

COMMIT, SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")

Progress = Callable[[int, int | None], None]


def fetch_hub(
    reference: str,
    endpoint: str | None = None,
    progress: Progress | None = None,
    offline: bool | None = None,
) -> Path:
    """Return the path of a model from the hub, its first part if it is split, downloading what is missing.

    `reference` is "user/repo", "user/repo:QUANT" (matched without regard to case; Q4_K_M, else the first
    file, if left out) or "user/repo:FILE.gguf". `endpoint` is the server's address, by default
    huggingface-hub's own. If the server cannot be reached, or if `offline` (None: the environment's
    setting), local files are used, also those of the cache that other programs share. `progress` is called
    with the bytes done and in all. Raises UsageError for an unusable reference, DownloadError with the
    choices, or with the reason, if it fails.
    """
    wanted = read_reference(reference)
    found = _find(wanted, endpoint, offline)
    if isinstance(found, Path):
        return found
    total, done = sum(file.web.n_bytes for file in found), 0
    for file in found:

        def report(here: int, before: int = done) -> None:
            if progress is not None:
                progress(before + here, total)

        try:
            if not checked_download.is_current(file):
                checked_download.bring(file, report)
        except DownloadError as error:
            raise _failed(wanted, file, error) from error
        done += file.web.n_bytes
    return found[0].path


def open_hub_header(
    reference: str, endpoint: str | None = None, progress: Progress | None = None, offline: bool | None = None
) -> ModelFile:
    """Open the header of a model of the hub: of the local file if there is one, else by range requests.

    Like `fetch_hub`; nothing is stored, and the data of tensors are not read.
    """
    wanted = read_reference(reference)
    found = _find(wanted, endpoint, offline)
    if isinstance(found, Path):
        return open_model(found)
    if all(checked_download.is_current(file) for file in found):
        return open_model(found[0].path)
    done = 0

    def distant(file: HubFile) -> DistantFile:
        def read(start: int, stop: int) -> bytes:
            nonlocal done
            try:
                held = b"".join(read_range(file.web, start, stop))
            except DownloadError as error:
                raise _failed(wanted, file, error) from error
            done += len(held)
            if progress is not None:
                progress(done, None)
            return held

        return DistantFile(Path(file.repo, file.name), file.web.n_bytes, read)

    return open_header([distant(file) for file in found])


def _find(wanted: Reference, endpoint: str | None, offline: bool | None) -> Path | list[HubFile]:
    """The path of the model if the server need not be asked, else its files from the hub's listing."""
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
    by_name = {one.rfilename: one for one in listed.siblings or [] if is_safe(one.rfilename)}
    names = choose(list(by_name), wanted.wanted, wanted.text)
    files = [_file(wanted, by_name[name], commit, endpoint) for name in names]
    if not all(checked_download.is_current(file) for file in files):
        shared = cached.cached_parts(wanted.repo, commit, names)
        if shared is not None:
            return shared[0]
    return files


def _file(wanted: Reference, listed: Any, commit: str, endpoint: str) -> HubFile:
    """A file of a listing, checked."""
    size, lfs = listed.size, listed.lfs
    if not isinstance(size, int) or size < 0:
        raise DownloadError(f"{wanted.called}: {listed.rfilename}: the server does not say how large it is")
    sha256 = str(lfs.sha256).lower() if lfs is not None and lfs.sha256 else None
    if sha256 is not None and SHA256.fullmatch(sha256) is None:
        raise DownloadError(f"{wanted.called}: {listed.rfilename}: the server's sha256 of it is none")
    version = sha256 or str(listed.blob_id or commit)
    url = huggingface_hub.hf_hub_url(wanted.repo, listed.rfilename, revision=commit, endpoint=endpoint)
    headers = build_hf_headers(library_name="graphml")
    return HubFile(wanted.repo, listed.rfilename, WebFile(url, headers, size), sha256, version[:64])


def _kept(wanted: Reference, error: DownloadError | None) -> Path:
    """The path of a local model; raises `error` if there is none, or the error of offline mode."""
    folder = hub_folder(wanted.repo)
    here = sorted(path.relative_to(folder).as_posix() for path in gguf_files(folder))
    places = [(folder, here), *((one.folder, list(one.files)) for one in cached.snapshots(wanted.repo))]
    unfit: DownloadError | None = None
    for place, names in places:
        if names:
            try:
                return place / choose(names, wanted.wanted, wanted.text)[0]
            except DownloadError as none:
                unfit = unfit or none
    if error is not None and unfit is None:
        raise error
    asked = "offline" if error is None else "the server did not answer"
    if unfit is not None:
        raise DownloadError(f"{unfit} ({asked}: of what was downloaded before)") from error
    raise DownloadError(f"{wanted.called}: {forbidden()}")


def _failed(wanted: Reference, file: HubFile, error: DownloadError) -> DownloadError:
    """The error of a download that failed half-way, which names the model and the file."""
    advice = ""
    if isinstance(error, AnsweredError) and error.status in (401, 403):
        server = f"{urlsplit(file.web.url).scheme}://{file.web.host}"
        advice = f": accept the terms on its page {server}/{wanted.repo}, and set HF_TOKEN to your token"
    return DownloadError(f"{wanted.called}: {file.name}: {error}{advice}")
