"""Responses that `previous_response_id` goes on from, in memory.

Knows ids and values; nothing of what they mean.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from graphml.server.api_errors import ApiError


@dataclass(frozen=True)
class Stored:
    """A response; the conversation up to its end, as messages; and the items that it was made of."""

    response: dict[str, Any]
    messages: list[Any]
    items: list[dict[str, Any]]


class StoredResponses:
    """Responses that later ones may go on from, the latest ones, each of the key that it was made for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str | None, str], Stored] = OrderedDict()

    def put(self, key: str | None, one: Stored) -> None:
        """Keep one."""
        self._kept[key, one.response["id"]] = one
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, key: str | None, id: str) -> Stored:
        """The one of this id; ApiError 404 where it is not known."""
        found = self._kept.get((key, id))
        if found is None:
            raise ApiError(404, "there is no response of this id; the latest ones alone are kept")
        return found

    def delete(self, key: str | None, id: str) -> None:
        """Forget one; ApiError 404 where it is not known."""
        self.get(key, id)
        del self._kept[key, id]
