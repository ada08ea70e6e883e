"""Bodies of requests, read and decoded so that the event loop goes on: big ones by a thread of their own.

Decoding holds the interpreter's lock, so what a big body has of values, keys and digits is counted before, in
parts. No request keeps its bytes once they are decoded.
Knows sizes; what the fields are is in `request_fields`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from graphml.server.engine.engine_access import LARGE
from graphml.server.engine.service import Service
from graphml.server.options.server_options import RequestLimits
from graphml.server.requests.request_fields import decoded
from graphml.server.responses.api_errors import ApiError

T = TypeVar("T")
SMALL = 128 << 10
"""Bytes of a body that the event loop decodes itself."""
PART = 64 << 10
DIGITS = 128
"""Of a number in a big body: the time that a whole number takes grows with the square of its digits."""
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (DIGITS + 1))
DECODED = "graphml.body"
"""Of a scope: the body, where it was decoded to choose the model."""
_BIG = ThreadPoolExecutor(1, "graphml-bodies")
"""One at a time: their memory is bounded so, and what they hold of the interpreter's lock."""


async def body_of(service: Service, request: Request, kind: type[T]) -> T:
    """The body as a value of that kind; ApiError 400 naming what is wrong, 413 for too many values."""
    known = request.scope.get(DECODED)
    return (
        known
        if isinstance(known, kind)
        else await read_body(service, request, lambda raw: decoded(raw, kind))
    )


async def read_body(service: Service, request: Request, decode: Callable[[bytes], T]) -> T:
    """What `decode` makes of the body."""
    return await limited_body(service.options.limits, request, decode)


async def limited_body(limits: RequestLimits, request: Request, decode: Callable[[bytes], T]) -> T:
    """What `decode` makes of the body, within these limits; of a large one in a thread."""
    raw = b"".join([chunk async for chunk in request.stream()])
    if len(raw) <= SMALL:
        return decode(raw)
    request.scope[LARGE] = True

    def work() -> T:
        check_counts(raw, limits)
        return decode(raw)

    return await asyncio.get_running_loop().run_in_executor(_BIG, work)


async def off_loop(request: Request, work: Callable[..., T], *arguments: Any) -> T:
    """What some work makes of a body that was decoded: of a big one in the thread that decoded it."""
    if LARGE not in request.scope:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_BIG, work, *arguments)


def check_counts(raw: bytes, limits: RequestLimits) -> None:
    """ApiError 413 for too many values, keys or escaped characters, or a number's digits, valid JSON or not.

    Nothing is decoded: strings are cut out, part by part, and what is between them is counted.
    """
    inside, left = False, b""
    values = nested = escapes = 0
    for begin in range(0, len(raw), PART):
        part = left + raw[begin : begin + PART]
        left = b""
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # what it escapes is in the next part
            part, left = part[:-1], b"\\"
        if b"\\" in part:
            escapes += part.count(b"\\")
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = part.split(b'"')
        between = b"".join(pieces[inside::2])
        inside ^= len(pieces) % 2 == 0
        if _LONG_NUMBER.search(between):
            raise ApiError(413, f"the body: at most {DIGITS} digits of a number are wanted")
        values += between.count(b",")
        nested += between.count(b":") + between.count(b"[") + between.count(b"{")
        counted = (values, limits.values, "values"), (nested, limits.nested, "keys, lists and objects")
        for count, most, what in (*counted, (escapes, limits.escapes, "escaped characters")):
            if count > most:
                raise ApiError(413, f"the body: at most {most} {what} are wanted")
