"""Activated adapters of a conversation (aLoRA): each works from its last invocation on, and nowhere else.

Knows ids and the options of a session; nothing of text or messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from graphml.api.tokens import Ids
from graphml.compiler.options import CompileOptions
from graphml.runtime.programs.adapter_options import invoked_at
from graphml.runtime.sessions.pinned import Pinned


class Adapted(Protocol):
    """What is used of a `Session`."""

    _probe: Any
    _turn: int
    _next: Any

    @property
    def n_past(self) -> int:
        """How many tokens it holds."""

    @property
    def tokens(self) -> list[int]:
        """The ids that it holds."""

    def sequence(self) -> Pinned:
        """Where it runs."""

    def eval(self, ids: Ids) -> Any:
        """Append ids."""


def go_on_with(session: Adapted, options: CompileOptions) -> None:
    """Evaluate what comes by other options, which differ in adapters; what was evaluated stays."""
    session._turn += 1
    session._next = None
    if not options.computes_as(session._probe.options):
        session.sequence().share_nothing()
        session._probe.options = options


class InvokedAdapters:
    """The activated adapters that a chat's session has, by where each works; without any it does nothing."""

    def __init__(self, session: Adapted) -> None:
        self._session = session
        self._given: CompileOptions = session._probe.options
        held = session.tokens
        self._starts = self._found(held) if held else ()

    def kept(self, ids: Sequence[int], shared: int) -> int:
        """How many of the `shared` ids that are held stay, where the conversation is these ids now.

        What an adapter has a part in otherwise than before is evaluated anew.
        """
        self._given = self._session._probe.options
        before, self._starts = self._starts, self._found(ids)
        if len(before) == len(self._starts):
            for old, new in zip(before, self._starts, strict=True):
                if old != new:
                    shared = min(position for position in (shared, old, new) if position is not None)
        return shared

    def begin(self, ids: Sequence[int]) -> list[int]:
        """Evaluate these ids up to the last invocation, and return the others, for which adapters are set."""
        first = self._session.n_past
        ends = sorted(
            {start for start in self._starts if start is not None and first < start < first + len(ids)}
        )
        for end in ends:
            self._set(first)
            self._session.eval(list(ids[: end - first]))
            ids, first = ids[end - first :], end
        self._set(first)
        return list(ids)

    def end(self, shifts: Iterable[tuple[int, int]]) -> None:
        """The answer has ended: the session has its own options again. shifts: what was forgotten by then."""
        for keep, drop in shifts:
            self._starts = tuple(
                start if start is None or start <= keep else max(keep, start - drop) for start in self._starts
            )
        if self._starts:
            go_on_with(self._session, self._given)

    def _found(self, ids: Sequence[int]) -> tuple[int | None, ...]:
        """Where each adapter begins to work; () where none waits for an invocation."""
        adapters = self._given.adapters
        if not any(adapter.invocation for adapter in adapters):
            return ()
        return tuple(invoked_at(adapter.invocation, list(ids)) for adapter in adapters)

    def _set(self, position: int) -> None:
        """Set the factors for tokens from this position on."""
        if self._starts:
            works = (start is not None and start <= position for start in self._starts)
            factors = zip(self._given.factors, works, strict=True)
            now = tuple(factor if here else 0.0 for factor, here in factors)
            go_on_with(self._session, replace(self._given, factors=now))
