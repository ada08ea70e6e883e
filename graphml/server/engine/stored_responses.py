"""Responses that `previous_response_id` goes on from, in memory.

Knows ids and values; nothing of what they mean.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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


class StoredResponses:
    """Responses that later ones may go on from, the latest ones, each of the key that it was made for.

    They are kept as JSON, so that `most_bytes` is what they take: lists and objects take many times that.
    Where they are too many, those of the key that has most go first. most_each: bytes of one.
    """

    def __init__(self, most: int, most_bytes: int, most_each: int | None = None) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._most_each = most_bytes if most_each is None else most_each
        self._kept: dict[tuple[str | None, str], bytes] = {}
        self.n_bytes = 0

    def put(self, key: str | None, stored: StoredResponse) -> None:
        """Keep one; one that is too large is not kept."""
        raw = msgspec.json.encode(stored)
        if len(raw) > self._most_each:
            return
        self._kept[key, stored.response["id"]] = raw
        self.n_bytes += len(raw)
        while len(self._kept) > self._most or self.n_bytes > self._most_bytes:
            self.n_bytes -= len(self._kept.pop(self._next_to_go()))

    def _next_to_go(self) -> tuple[str | None, str]:
        """The oldest one of the key that has the largest share."""
        shares = Counter[str | None]()
        for (key, _), raw in self._kept.items():
            shares[key] += self._most_bytes + self._most * len(raw)
        ((most, _),) = shares.most_common(1)
        return next(pair for pair in self._kept if pair[0] == most)

    def get(self, key: str | None, id: str) -> StoredResponse:
        """The one of this id; ApiError 404 where it is not known."""
        raw = self._kept.get((key, id))
        if raw is None:
            raise self._unknown()
        return msgspec.json.decode(raw, type=StoredResponse)

    def delete(self, key: str | None, id: str) -> None:
        """Forget one; ApiError 404 where it is not known."""
        if (key, id) not in self._kept:
            raise self._unknown()
        self.n_bytes -= len(self._kept.pop((key, id)))

    def _unknown(self) -> ApiError:
        return ApiError(404, "there is no response of this id; the latest ones alone are kept")
