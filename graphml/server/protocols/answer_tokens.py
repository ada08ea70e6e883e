"""Which tokens of an answer are of its text, and how many of its reasoning.

What is told of a token may come with a later one, so tokens wait for the events that tell of them. Knows
tokens and events; nothing of formats or protocols.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.api.tokens import Token
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.text.answers import ContentDelta, Event, ReasoningDelta


class AnswerTokens:
    """Counts the tokens of one answer. n_reasoning: of its reasoning, with the marks around it.

    logprobs: of the text's tokens, where they are asked for.
    """

    def __init__(self) -> None:
        self.n_reasoning = 0
        self.logprobs: list[TokenLogprobs] = []
        self._waiting: list[Token] = []
        self._n_behind = 0  # of those that wait, behind the end of the reasoning
        self._reasons = False

    def push(self, token: Token | None, events: Sequence[Event], reasoned: bool = False) -> None:
        """Take a token, None at the end, and what became certain with it.

        reasoned: whether the end of the reasoning had come before the token.
        """
        if token is not None:
            self._waiting.append(token)
            self._n_behind += reasoned
        if not any(getattr(event, "text", True) for event in events):
            return
        self._reasons |= any(isinstance(event, ReasoningDelta) for event in events)
        text = "".join(event.text for event in events if isinstance(event, ContentDelta))
        n_text = 0
        if text:
            n_text = self._n_last(len(text)) if self._reasons else len(self._waiting)
        begin = len(self._waiting) - n_text
        if self._reasons:
            self.n_reasoning += min(begin, len(self._waiting) - self._n_behind)
        self.logprobs += [t.logprobs for t in self._waiting[begin:] if t.logprobs is not None]
        self._reasons = isinstance(events[-1], ReasoningDelta)
        self._waiting, self._n_behind = [], 0

    def _n_last(self, n_chars: int) -> int:
        """How many of the last tokens that wait have a text of this length: marks are before it."""
        count = 0
        while n_chars > 0 and count < len(self._waiting):
            count += 1
            n_chars -= len(self._waiting[-count].piece)
        return count
