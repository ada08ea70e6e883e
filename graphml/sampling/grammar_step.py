"""A grammar in a chain: forbids tokens that it does not allow; a lazy one begins at a trigger.

Knows a grammar's `allowed` and `accept`; nothing of rules.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates import Candidates
from graphml.sampling.moment import Moment, Vocabulary

_KNOWN = ("grammar", "root", "lazy", "trigger_patterns", "trigger_tokens")


class GrammarStep:
    """One grammar and what it has accepted. waits: for a trigger, until then it allows everything."""

    def __init__(
        self,
        grammar: Any,
        vocabulary: Vocabulary,
        patterns: list[re.Pattern[str]],
        tokens: list[int],
        waits: bool,
    ) -> None:
        self._grammar, self._vocabulary = grammar, vocabulary
        self._patterns, self._tokens, self._waits, self._text = patterns, tokens, waits, b""

    @staticmethod
    def made(name: str, given: Mapping[str, Any], vocabulary: Vocabulary | None) -> GrammarStep:
        """The step of an entry; UsageError naming what is wrong with it."""
        unknown = [key for key in given if key not in _KNOWN]
        if unknown:
            raise UsageError(f"{name}: grammar: wanted parameters of {', '.join(_KNOWN)}; got {unknown[0]!r}")
        if vocabulary is None:
            raise UsageError(f"{name}: grammar: wanted vocab, whose tokens have texts; got None")
        try:
            patterns = [re.compile(one, re.DOTALL) for one in given.get("trigger_patterns", ())]
        except (re.error, TypeError) as error:
            raise UsageError(f"{name}: grammar: trigger_patterns: {error}") from None
        from graphml import sampling  # the package has it, and imports this file

        made = getattr(sampling, "grammar", None)
        if made is None:
            raise UsageError(f"{name}: grammar: this graphml has no grammars")
        grammar = made(given.get("grammar", ""), root=given.get("root", "root"), vocab=vocabulary)
        tokens = [int(one) for one in given.get("trigger_tokens", ())]
        return GrammarStep(grammar, vocabulary, patterns, tokens, bool(given.get("lazy", False)))

    def copy(self, _: object) -> GrammarStep:
        """Another one that goes on the same way."""
        grammar = self._grammar.copy() if hasattr(self._grammar, "copy") else copy.deepcopy(self._grammar)
        made = GrammarStep(grammar, self._vocabulary, self._patterns, self._tokens, self._waits)
        made._text = self._text
        return made

    def run(self, candidates: Candidates, _: Moment) -> tuple[Candidates, int | None]:
        """Forbid (-inf) what the grammar does not allow."""
        if self._waits:
            return candidates, None
        allowed = np.asarray(self._grammar.allowed(candidates.ids), np.bool_)
        logits = np.where(allowed, candidates.logits, np.float32(-np.inf))
        return candidates.with_logits(logits, candidates.is_sorted), None

    def accept(self, token: int) -> None:
        """Go on with a token; a trigger among them begins the grammar, with its first group if it has one."""
        if not self._waits:
            self._grammar.accept(token)
            return
        if token in self._tokens:
            self._waits = False
            self._grammar.accept(token)
            return
        self._text += self._vocabulary.piece_bytes(token)
        text = self._text.decode("utf-8", "replace")
        for pattern in self._patterns:
            found = pattern.search(text)
            if found is None:
                continue
            groups = [i for i in range(1, (pattern.groups or 0) + 1) if found.group(i)]
            self._waits = False
            for byte in text[found.start(groups[0] if groups else 0) :].encode():
                self._grammar.accept(self._grammar.bytes[byte])
            return
