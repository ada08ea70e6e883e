"""Prompts as `echo` repeats them before their answers: the text, and how likely each token of it was.

What the server puts before a text, a begin token or a space, is no part of it; ids that a client has sent are
all told, control tokens without text. Knows tokens and their scores; nothing of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphml.sampling.logprobs import TokenLogprobs
from graphml.server.prompts import begins_with_text
from graphml.text.tokenizer import Tokenizer


class EchoedPrompt:
    """A prompt's ids as its client knows them. given, number: the field of the request, and which prompt."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], given: Any, number: int) -> None:
        self._begin = int(begins_with_text(given, number) and bool(ids) and ids[0] == tokenizer.bos)
        shown = ids[self._begin :]
        self.pieces = [b"" if tokenizer.is_special(id) else tokenizer.piece_bytes(id) for id in shown]
        if self.pieces and self.pieces[0]:
            self.pieces[0] = tokenizer.first_bytes(shown[0])

    @property
    def text(self) -> str:
        """The prompt as a text."""
        return b"".join(self.pieces).decode("utf-8", "replace")

    def scores(self, every: Sequence[TokenLogprobs | None]) -> list[TokenLogprobs | None]:
        """Those of its pieces, of all ids of the prompt; none without any.

        None for one that nothing is before, or that was not computed since the request ended before.
        """
        known = every[self._begin : self._begin + len(self.pieces)]
        return [*known, *[None] * (len(self.pieces) - len(known))] if every else []
