"""Tells listeners how much of their prompts a step has computed.

Knows rows of a step and listeners; nothing of the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from graphml.runtime.loop_interfaces import Listener
from graphml.runtime.sequence import Sequence
from graphml.runtime.step_plan import Rows


class Member(Protocol):
    """A sequence in the loop."""

    listener: Listener


def tell_progress(done: Iterable[Rows], members: Mapping[Sequence, Member]) -> None:
    """Of computed rows, those of prompts, but for a prompt's last id alone, whose token tells as much."""
    for rows in done:
        n_prompt = rows.sequence.request.n_prompt
        if rows.start < n_prompt and (rows.count > 1 or not rows.n_outputs):
            one = members.get(rows.sequence)
            if one is not None:
                with contextlib.suppress(Exception):  # of the listener alone
                    one.listener.prompt_computed(min(rows.sequence.n_computed, n_prompt))
