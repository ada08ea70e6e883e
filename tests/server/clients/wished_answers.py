"""A model that would say what a test wishes: all else of a server is as with any model, grammars among it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import graphml
from tests import tiny_model
from tests.server.running_server import Running

HEADER = b"assistant\n"
"""What begins an answer, behind the token that begins a turn."""
LIKED = 1000.0


@dataclass
class Wishes:
    """A function of logits.

    answers: of different requests in turn, texts or functions of the prompt; the last repeats. prompts: what
    the model was asked.
    """

    model: graphml.Model
    answers: list[str | Callable[[str], str]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    server: Running | None = None
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict)

    def forget(self) -> None:
        self.answers, self.prompts, self._texts = [], [], {}

    def say(self, *answers: str | Callable[[str], str]) -> None:
        self.answers = list(answers)

    @property
    def address(self) -> str:
        assert self.server is not None
        return self.server.address

    @property
    def v1(self) -> str:
        return f"{self.address}/v1"

    def __call__(self, ids: Any, logits: Any, history: Any) -> Any:
        tokens = [int(token) for token in history]
        begin = len(tokens) - tokens[::-1].index(tiny_model.START)
        prompt = self._text(tuple(tokens[: begin - 1]))
        said = b"".join(map(self.model.tokenizer.piece_bytes, tokens[begin:])).removeprefix(HEADER)
        if prompt not in self.prompts:
            self.prompts.append(prompt)
        if not self.answers:
            return logits
        turn = min(self.prompts.index(prompt), len(self.answers) - 1)
        answer = self.answers[turn]
        wish = (answer(prompt) if callable(answer) else answer).encode()
        liked = tiny_model.END
        if said != wish:
            if not wish.startswith(said):
                return logits
            liked = len(tiny_model.SPECIAL) + wish[len(said)]  # the byte's token
        logits = np.array(logits, np.float32)
        logits[(np.asarray(ids) == liked) & np.isfinite(logits)] = LIKED  # what may not come stays out
        return logits

    def _text(self, prompt: tuple[int, ...]) -> str:
        """The text of a prompt, which is decoded once."""
        if prompt not in self._texts:
            self._texts[prompt] = self.model.decode(prompt, skip_special=False)
        return self._texts[prompt]
