"""The text of a conversation that a session has seen, and the ids that stand for it.

Knows texts and ids; nothing of messages, sessions or files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from graphml.errors import UsageError


@dataclass(frozen=True)
class Seen:
    """A rendered text and the ids that stand for it, whatever the session holds meanwhile.

    places: (characters, ids) pairs: so many ids stand for so many characters.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ((0, 0),)

    def shifted(self, keep: int, drop: int) -> Seen:
        """The same after a session has forgotten ids: those that are left stand for all of the text."""
        ids = self.ids[:keep] + self.ids[keep + drop :]
        end = keep + drop
        left = [(text, n if n <= keep else n - drop) for text, n in self.places if n <= keep or n >= end]
        return Seen(self.text, ids, tuple(left))

    def saved(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)

    @staticmethod
    def restored(saved: Mapping[str, Any]) -> Seen:
        """What was `saved`; UsageError for what is no such value."""
        try:
            text, ids = saved["text"], tuple(saved["ids"])
            places = tuple((characters, count) for characters, count in saved["places"])
            numbers = [*ids, *(number for place in places for number in place)]
            if not isinstance(text, str) or not all(
                type(number) is int and number >= 0 for number in numbers
            ):
                raise ValueError("wanted a text and whole numbers")
            rises = all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(places))
            if places[:1] != ((0, 0),) or not rises or places[-1] > (len(text), len(ids)):
                raise ValueError("its places do not rise from 0 to its end")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"seen: wanted a text, its ids and places in both; {error!r:.200}") from None
        return Seen(text, ids, places)
