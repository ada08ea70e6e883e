"""Responses that `previous_response_id` goes on from, in memory.

Knows ids and values; nothing of what they mean.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from graphml.server.api_errors import ApiError


@dataclass(frozen=True)
class Stored:
    """A response; the conversation up to its end, as messages; and the items that it was made of."""

    response: dict[str, Any]
    messages: list[Any]
    items: list[dict[str, Any]]


class StoredResponses:
    """Responses that later ones may go on from, the latest ones, each of the key that it was made for.

    They are kept as JSON, so that `most_bytes` is what they take: lists and objects take many times that.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[tuple[str | None, str], bytes] = OrderedDict()
        self.n_bytes = 0

    def put(self, key: str | None, one: Stored) -> None:
        """Keep one; one that is larger than all may be is not kept."""
        raw = msgspec.json.encode(one)
        if len(raw) > self._most_bytes:
            return
        self._kept[key, one.response["id"]] = raw
        self.n_bytes += len(raw)
        while len(self._kept) > self._most or self.n_bytes > self._most_bytes:
            self.n_bytes -= len(self._kept.popitem(last=False)[1])

    def get(self, key: str | None, id: str) -> Stored:
        """The one of this id; ApiError 404 where it is not known."""
        found = self._kept.get((key, id))
        if found is None:
            raise self._unknown()
        return msgspec.json.decode(found, type=Stored)

    def delete(self, key: str | None, id: str) -> None:
        """Forget one; ApiError 404 where it is not known."""
        if (key, id) not in self._kept:
            raise self._unknown()
        self.n_bytes -= len(self._kept.pop((key, id)))

    def _unknown(self) -> ApiError:
        return ApiError(404, "there is no response of this id; the latest ones alone are kept")
