"""A small vocabulary of made-up tokens, and moments for filters: what sampling tests need besides logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphml.sampling import Filter, SamplingParams
from graphml.sampling.candidates.moment import Moment


class Words:
    """Tokens with given texts; it encodes by the longest token that fits. Id 0 ends the text, 1 a turn."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = ["<end>", "<turn>", *texts]
        self.n_vocab = len(self.texts)
        self.eos, self.eot, self.end_tokens = 0, 1, frozenset({0, 1})

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        found = []
        while text:
            fits = [i for i, one in enumerate(self.texts) if i > 1 and one and text.startswith(one)]
            found.append(max(fits, key=lambda i: len(self.texts[i])))
            text = text[len(self.texts[found[-1]]) :]
        return found

    def piece_bytes(self, token: int) -> bytes:
        return self.texts[token].encode()

    def first_bytes(self, token: int) -> bytes:
        return self.piece_bytes(token)

    def is_special(self, token: int) -> bool:
        return token < 2


LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAIRS = Words([*LETTERS, *'\n:"* ', *(a + b for a in LETTERS[:12] for b in LETTERS)])


def moment_of(
    one: Filter,
    params: SamplingParams,
    history: Any = (),
    n_vocab: int = 300,
    chance: float = 0.0,
    words: Words = PAIRS,
) -> Moment:
    """What a filter of these params sees at the beginning of a sequence."""
    state = () if one.keeps is None else one.keeps.start(params)
    return Moment(history, n_vocab, lambda: chance, state, words)
