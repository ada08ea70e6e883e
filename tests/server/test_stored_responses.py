"""Responses that are kept: how many, how large, and whose."""

from __future__ import annotations

import contextlib

import pytest

from graphml.server.engine.stored_responses import StoredResponse, StoredResponses
from graphml.server.responses.api_errors import ApiError


def stored(id: str, n_chars: int = 0) -> StoredResponse:
    return StoredResponse({"id": id}, [{"role": "user", "content": "a"}], [{"junk": "x" * n_chars}])


def found(kept: StoredResponses, *ids: str) -> list[bool]:
    there: list[bool] = []
    for id in ids:
        with contextlib.suppress(ApiError):
            kept.get("key", id)
            there.append(True)
            continue
        there.append(False)
    return there


def test_the_latest_are_kept_by_number_and_by_bytes() -> None:
    few, small = StoredResponses(2, 1 << 20), StoredResponses(100, 1000)
    for id in ("a", "b", "c"):
        few.put("key", stored(id))
        small.put("key", stored(id, 360))
    assert found(few, "a", "b", "c") == found(small, "a", "b", "c") == [False, True, True]
    small.put("key", stored("d", 1001))
    assert found(small, "b", "c", "d") == [True, True, False]
    assert small.n_bytes <= 1000
    for id in ("b", "c"):
        small.delete("key", id)
    assert small.n_bytes == 0


def test_a_stored_response_is_of_its_key_alone_and_never_changes() -> None:
    kept, one = StoredResponses(2, 1 << 20), stored("a")
    kept.put("key", one)
    one.messages[0]["content"] = kept.get("key", "a").messages[0]["content"] = "changed"
    assert kept.get("key", "a") == stored("a")
    for stranger in ("other", None):
        with pytest.raises(ApiError):
            kept.get(stranger, "a")
        with pytest.raises(ApiError):
            kept.delete(stranger, "a")
