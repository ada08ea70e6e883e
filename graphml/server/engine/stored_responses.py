"""Responses that `previous_response_id` goes on from, in memory.

Knows ids and values; nothing of what they mean.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from graphml.server.responses.api_errors import ApiError


@dataclass(frozen=True)
class StoredResponse:
    """A response; the conversation up to its end, as messages; and the items that it was made of.

    pieces, n_progress: of its stream, as of `ResponseEvents`; None without one.
    """

    response: dict[str, Any]
    messages: list[Any]
    items: list[dict[str, Any]]
    pieces: list[list[tuple[int, int]]] | None = None
    n_progress: int = 0


@dataclass(frozen=True)
class _Encoded:
    """A stored response as JSON, and what else is kept of it."""

    response: bytes
    rest: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.rest)


class StoredResponses:
    """Responses that later ones may go on from, the latest ones, each of the key that it was made for.

    They are kept as JSON, so that `most_bytes` is what they take: lists and objects take many times that.
    Where they are too many, those of the key that has most go first. most_each: bytes of one.
    """

    def __init__(self, most: int, most_bytes: int, most_each: int | None = None) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._most_each = most_bytes if most_each is None else most_each
        self._kept: dict[tuple[str | None, str], _Encoded] = {}
        self.n_bytes = 0

    def put(self, key: str | None, stored: StoredResponse) -> None:
        """Keep one; one that is too large is not kept."""
        response = msgspec.json.encode(stored.response)
        if len(response) > self._most_each:
            return
        encoded = _Encoded(response, msgspec.json.encode(replace(stored, response={})))
        if encoded.size > self._most_each:
            return
        self._kept[key, stored.response["id"]] = encoded
        self.n_bytes += encoded.size
        while len(self._kept) > self._most or self.n_bytes > self._most_bytes:
            self.n_bytes -= self._kept.pop(self._next_to_go()).size

    def _next_to_go(self) -> tuple[str | None, str]:
        """The oldest one of the key that has the largest share."""
        shares = Counter[str | None]()
        for (key, _), encoded in self._kept.items():
            shares[key] += self._most_bytes + self._most * encoded.size
        ((most, _),) = shares.most_common(1)
        return next(pair for pair in self._kept if pair[0] == most)

    def get(self, key: str | None, id: str) -> StoredResponse:
        """The one of this id; ApiError 404 where it is not known."""
        encoded = self._found(key, id)
        stored = msgspec.json.decode(encoded.rest, type=StoredResponse)
        return replace(stored, response=msgspec.json.decode(encoded.response))

    def response(self, key: str | None, id: str) -> bytes:
        """The response of this id as JSON, the same bytes for all who read it; ApiError 404 as of `get`."""
        return self._found(key, id).response

    def delete(self, key: str | None, id: str) -> None:
        """Forget one; ApiError 404 where it is not known."""
        self.n_bytes -= self._found(key, id).size
        del self._kept[key, id]

    def _found(self, key: str | None, id: str) -> _Encoded:
        encoded = self._kept.get((key, id))
        if encoded is None:
            raise ApiError(404, "there is no response of this id; the latest ones alone are kept")
        return encoded
