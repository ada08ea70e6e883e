"""Stop strings: ends a streamed text at a stop string without ever returning a part of one.

Knows text pieces only; stop tokens are the session's matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.errors import UsageError


class StopMatcher:
    """Passes streamed text on up to the first stop string, holding back a possible beginning of one.

    The text ends at the first complete stop string, the longest of those that end there. The result does not
    depend on the pieces of the text. Raises UsageError for an empty stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise UsageError(f"stop: wanted strings that are not empty, got {stop!r}")
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return the text that is safe to show, and whether a stop string was found.

        The stop string itself and all text after it are dropped: further pieces return ("", True).
        """
        if not self._stops:
            return text, False
        if self.matched is not None:
            return "", True
        held = self._held + text
        ends = [at + len(stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if ends:
            before = held[: min(ends)]
            self.matched = max((stop for stop in self._stops if before.endswith(stop)), key=len)
            self._held = ""
            return before[: -len(self.matched)], True
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        safe = len(held) - keep
        self._held = held[safe:]
        return held[:safe], False

    def flush(self) -> str:
        """Return the text still held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
