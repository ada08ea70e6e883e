"""Responses that were only listened to: their lines and times, however the bytes came."""

from __future__ import annotations

import asyncio
import random

import pytest

from graphml.bench.timed_response import BrokenResponseError, TimedResponse
from tests.looped import looped

LINES = ["data: 1", "", "data: ä 2", "", "data: [DONE]", ""]
BODY = "".join(f"{one}\n" for one in LINES).encode()


def _response(raw: bytes, cuts: list[int]) -> TimedResponse:
    """What came in parts, at the times 0, 1, ..."""

    async def made() -> TimedResponse:
        return TimedResponse(b"")

    found = asyncio.run(made())
    ends = [*cuts, len(raw)]
    found.parts = [(float(i), raw[a:b]) for i, (a, b) in enumerate(zip([0, *cuts], ends, strict=True))]
    return found


def _chunked(body: bytes, sizes: list[int]) -> bytes:
    """The body in chunks, behind a head."""
    raw, at = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0
    for size in sizes:
        raw += b"%x\r\n%s\r\n" % (size, body[at : at + size])
        at += size
    return raw + b"0\r\n\r\n"


@looped("seed", range(20))
def test_lines_are_the_same_however_the_bytes_came(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [7, 1, 11, len(BODY) - 19]
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY
    for raw in (_chunked(BODY, sizes), plain):
        cuts = sorted(rng.sample(range(1, len(raw)), rng.randint(0, 12)))
        status, lines = _response(raw, cuts).lines()
        found = list(lines)
        assert (status, [line for _, line in found]) == (200, LINES)
        times = [when for when, _ in found]
        assert times == sorted(times)


def test_a_line_has_the_time_of_the_part_that_ends_it() -> None:
    raw = _chunked(BODY, [8, len(BODY) - 8])
    second = raw.index(b"\r\n", raw.index(b"data: 1"))
    _, lines = _response(raw, [10, second, second + 30]).lines()
    assert [(when, line) for when, line in lines][:1] == [(1.0, "data: 1")]


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\n", b"nonsense\r\n\r\n"])
def test_what_has_no_head_is_broken(raw: bytes) -> None:
    with pytest.raises(BrokenResponseError, match="head"):
        _response(raw, []).lines()


@pytest.mark.parametrize("n_bytes", [1, 6, 20])
def test_chunks_that_end_too_soon_are_broken(n_bytes: int) -> None:
    _, lines = _response(_chunked(BODY, [len(BODY)])[:-n_bytes], []).lines()
    with pytest.raises(BrokenResponseError, match="end"):
        list(lines)
