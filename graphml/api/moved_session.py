"""A session on another opening of its model: its tokens are evaluated again there.

For a backend whose device fails: nothing is read from it. Knows what a session is besides what is computed.
"""

from __future__ import annotations

from graphml.api.session import Session
from graphml.errors import UsageError


def go_on_from(made: Session, other: Session) -> None:
    """Have a new session hold what another one does; UsageError if that is of another model."""
    mine, theirs = made._executor.file, other._executor.file
    if mine.fingerprint != theirs.fingerprint:
        raise UsageError(f"moved: wanted a session of {mine.path}; got one of another model, {theirs.path}")
    if other.source:
        made.encode(other.source)
    if other.tokens:
        made.eval(other.tokens)
    made.seed, made.numbers, made.chooses = other.seed, other.numbers.copy(), other.chooses
