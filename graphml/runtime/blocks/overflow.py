"""What a full context does to a sequence that goes on: it ends, forgets, or is an error.

Knows counts of tokens; nothing of caches or of how tokens are moved.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.errors import ContextFullError
from graphml.options.option_fields import OneOf, Whole, check, option

OVERFLOWS = ("stop", "shift", "error")
DROP_TURNS = "drop_turns"
_SPARE = 4  # tokens of a context that are never kept, as in llama.cpp's server


@dataclass(frozen=True)
class Overflow:
    """What is done where the context is full, and how many of the first tokens a shift keeps.

    overflow: `stop` ends, `shift` forgets half of the tokens behind the kept ones, `error` raises a
    ContextFullError. keep: as llama.cpp's n_keep: so many of the first tokens, and a begin token before
    them; -1: the prompt.
    """

    overflow: str = option(
        "stop",
        "When the context is full: {words}; shift discards half of the tokens behind --keep.",
        "--overflow",
        range=OneOf(OVERFLOWS),
    )
    keep: int = option(
        0, "Number of first tokens that a context shift keeps, besides BOS; -1: the prompt.", "--keep",
        range=Whole(-1),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

    @property
    def shifts(self) -> bool:
        """Whether tokens are forgotten."""
        return self.overflow == "shift"

    def when_full(self, n_ctx: int) -> str | None:
        """Why a sequence ends whose context is full, None where it goes on; ContextFullError if asked for."""
        if self.overflow == "error":
            raise ContextFullError(
                f"the context of {n_ctx} tokens is full: make it larger (--ctx; n_ctx in Python) if the "
                'model allows, or have it forget (--overflow shift; overflow="shift" in Python)'
            )
        return None if self.shifts else "context"

    def kept(self, n_prompt: int, begins: bool, n_ctx: int) -> int:
        """How many of the first tokens stay. begins: whether the first is a begin token."""
        count = n_prompt if self.keep < 0 else self.keep + begins
        return max(0, min(count, n_ctx - _SPARE))


@dataclass(frozen=True)
class ChatOverflow(Overflow):
    """The same of a conversation, whose oldest turns may leave its prompt as a whole.

    overflow: `drop_turns` leaves them out, and ends an answer that fills the context as `stop` does.
    """

    overflow: str = option(
        DROP_TURNS,
        "When the context is full: {words}; drop_turns leaves the oldest turns out of the prompt, shift "
        "discards half of the tokens behind --keep.",
        "--overflow",
        range=OneOf((DROP_TURNS, *OVERFLOWS)),
    )

    @property
    def drops_turns(self) -> bool:
        """Whether the oldest turns leave the prompt."""
        return self.overflow == DROP_TURNS

    @property
    def of_answer(self) -> str:
        """What an answer does that fills the context, one of `OVERFLOWS`."""
        return "stop" if self.drops_turns else self.overflow


def n_dropped(n_held: int, kept: int, count: int, n_ctx: int) -> int:
    """How many of `n_held` tokens are forgotten behind the kept ones, so that `count` more fit; 0: none.

    Half of those that are not kept, or more where that is needed; ContextFullError where all are too few.
    """
    needed = n_held + count - n_ctx
    if needed <= 0:
        return 0
    kept = min(kept, n_held)
    drop = max((n_held - kept) // 2, needed)
    if kept + count > n_ctx:
        raise ContextFullError(
            f"the context holds {n_ctx} tokens, of which {kept} are kept (keep); got {count} more"
        )
    return drop
