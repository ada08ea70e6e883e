"""HTTP range requests: reads the bytes of a file on a server from one position up to another.

huggingface-hub's own downloader restarts an interrupted download, accepts as many bytes as a server sends and
reads whole files only; its HTTP client (proxies, certificates, redirects) is used. Knows nothing of the
meaning of the bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub

from graphml.errors import DownloadError
from graphml.loading.download.advice import reason_of, unreachable

TIMEOUT_S = 20.0
MOST_BYTES_A_REQUEST = 32 << 30  # servers before large files refuse more than 50 GB in one answer
MOST_FAILURES = 5  # in a row, without a byte between them
FIRST_WAIT_S = 0.5
WORTH_ANOTHER_TRY = (408, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class AnsweredError(DownloadError):
    """A server answered with something other than the requested bytes; `status` is HTTP's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class WebFile:
    """A file of `n_bytes` at an address, and the headers of requests for it."""

    url: str
    headers: Mapping[str, str]
    n_bytes: int

    @property
    def host(self) -> str:
        """The server's name, with its port if the address has one."""
        return urlsplit(self.url).netloc


def read_range(file: WebFile, start: int, stop: int) -> Iterator[bytes]:
    """Yield exactly the bytes from `start` up to `stop`; a broken connection is resumed.

    A server that ignores ranges sends the file from its beginning: bytes before `start` are dropped. Raises
    DownloadError if the server answers with other bytes, or not at all.
    """
    position, failures = start, 0
    while position < stop:
        problem: Exception | None = None
        try:
            for chunk in _answer(file, position, min(stop, position + MOST_BYTES_A_REQUEST)):
                yield chunk
                position, failures = position + len(chunk), 0
        except AnsweredError as error:
            if error.status not in WORTH_ANOTHER_TRY:
                raise
            problem = error
        except Exception as error:  # any error of the HTTP client, which depends on its version
            problem = error
        if position < stop:
            failures += 1
            if failures > MOST_FAILURES:
                raise _given_up(file, position, problem)
            time.sleep(FIRST_WAIT_S * (2 ** (failures - 1) - 1))  # at once, then longer and longer


def _given_up(file: WebFile, position: int, problem: Exception | None) -> DownloadError:
    """The error after the last try; problem: the error of that try, None if the answer was too short."""
    if problem is None:
        return AnsweredError(f"{file.host} ends its answers at byte {position}", 206)
    if isinstance(problem, AnsweredError):
        return problem
    return DownloadError(unreachable(file.host, reason_of(problem), "HF_ENDPOINT"))


def _answer(file: WebFile, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of one request, at most up to `stop`."""
    asked = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    client = huggingface_hub.get_session()
    with client.stream("GET", file.url, headers={**file.headers, **asked}, timeout=TIMEOUT_S) as response:
        unwanted, left = _begins(file, response, start), stop - start
        for chunk in response.iter_raw():
            wanted = chunk[unwanted : unwanted + left]
            unwanted -= min(unwanted, len(chunk))
            left -= len(wanted)
            if wanted:
                yield wanted
            if not left:
                return


def _begins(file: WebFile, response: Any, start: int) -> int:
    """How many bytes of an answer come before `start`; DownloadError for an invalid answer."""
    status = int(response.status_code)
    if status not in (200, 206):
        phrase = str(response.reason_phrase)[:80]
        raise AnsweredError(f"{file.host} answers {status} {phrase!r}", status)
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise AnsweredError(f"{file.host} sends an encoding that was not asked for", status)
    if status == 200:
        length = response.headers.get("Content-Length")
        if length is not None and length != str(file.n_bytes):
            raise AnsweredError(f"{file.host} sends {length[:30]} bytes; wanted {file.n_bytes}", status)
        return start
    came = str(response.headers.get("Content-Range", ""))[:80]
    match = CONTENT_RANGE.fullmatch(came)
    if match is None or int(match[1]) != start or match[3] not in ("*", str(file.n_bytes)):
        raise AnsweredError(
            f"{file.host} sends {came or 'an unnamed range'!r}; wanted bytes {start} on, of {file.n_bytes}",
            status,
        )
    return 0
