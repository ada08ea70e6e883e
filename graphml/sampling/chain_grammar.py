"""A grammar in a chain: forbids tokens that it does not allow.

Knows a matcher's `allowed`, `accept` and `copy`, as `graphml.sampling.grammar` makes one; nothing of rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.moment import Moment, SamplerVocabulary
from graphml.sampling.structured import grammar

_KNOWN = ("grammar", "root", "lazy", "trigger_patterns", "trigger_tokens")


class GrammarStep:
    """One grammar, and what its matcher has accepted."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @staticmethod
    def made(name: str, entry: Mapping[str, Any], vocabulary: SamplerVocabulary | None) -> GrammarStep:
        """The step of an entry; UsageError naming what is wrong with it."""
        unknown = [key for key in entry if key not in _KNOWN]
        if unknown:
            raise UsageError(f"{name}: grammar: wanted parameters of {', '.join(_KNOWN)}; got {unknown[0]!r}")
        if vocabulary is None:
            raise UsageError(f"{name}: grammar: wanted vocab, whose tokens have texts; got None")
        more = {key: entry[key] for key in _KNOWN[2:] if key in entry}
        return GrammarStep(
            grammar(entry.get("grammar", ""), root=entry.get("root", "root"), vocab=vocabulary, **more)
        )

    def copy(self, _: object) -> GrammarStep:
        """Another one that goes on the same way."""
        return GrammarStep(self._matcher.copy())

    def run(self, candidates: Candidates, _: Moment) -> tuple[Candidates, int | None]:
        """Forbid (-inf) what the grammar does not allow."""
        allowed = np.asarray(self._matcher.allowed(candidates.ids), np.bool_)
        logits = np.where(allowed, candidates.logits, np.float32(-np.inf))
        return candidates.with_logits(logits, candidates.is_sorted), None

    def accept(self, token: int) -> None:
        """Go on with a token."""
        self._matcher.accept(token)
