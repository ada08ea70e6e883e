"""Who gets what an engine's loop computes for a sequence.

Knows tokens and reasons; nothing of steps.
"""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Who gets the tokens of a sequence; called by the engine's thread, so it must not wait."""

    def sampled(self, token: int) -> str | None:
        """A token was sampled; why it ends the sequence without being a part of it, or None."""

    def appended(self, token: int, last: bool) -> str | None:
        """The token belongs to the sequence, as its last or not; why it is the last all the same, or None."""

    def prompt_computed(self, count: int) -> None:
        """So many ids of the prompt are computed now; more than one of them in this step, or not the last."""

    def ended(self, reason: str) -> None:
        """No token follows."""

    def failed(self, error: BaseException) -> None:
        """No token follows, for this reason."""
