"""What a filter may look at besides the candidates: of one sequence, before one of its tokens.

Knows no filter, and nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graphml.errors import UsageError


class SamplerVocabulary(Protocol):
    """What samplers read of a tokenizer; `graphml.text.tokenizer.Tokenizer` has it."""

    n_vocab: int
    eos: int | None
    eot: int | None

    @property
    def end_tokens(self) -> Collection[int]:
        """The ids that end a generation."""

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text."""

    def piece_bytes(self, token: int) -> bytes:
        """The bytes of a token."""

    def first_bytes(self, token: int) -> bytes:
        """The bytes of a token that is a text of its own."""

    def __hash__(self) -> int:
        """Answers about a vocabulary are kept by it."""

    def is_special(self, token: int) -> bool:
        """Whether it is a control or unknown token."""


def _no_number() -> float:
    raise UsageError("this filter was given no random numbers")


@dataclass
class Moment:
    """A filter's moment.

    history: the ids so far. n_vocab: logits of the whole row. chance: the next random number from 0 to 1.
    state: what the filter keeps. vocabulary: None for a model without one. prepared: by filter, what its
    `prepare` returned.
    """

    history: Sequence[int] = ()
    n_vocab: int = 0
    chance: Callable[[], float] = _no_number
    state: tuple[float, ...] = ()
    vocabulary: SamplerVocabulary | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def words(self, what: str) -> SamplerVocabulary:
        """The vocabulary; UsageError naming the setting that needs it."""
        if self.vocabulary is None:
            raise UsageError(f"{what}: wanted a model with a vocabulary, whose tokens have texts; got none")
        return self.vocabulary
