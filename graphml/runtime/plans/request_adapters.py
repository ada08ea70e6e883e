"""The adapters of an engine's requests: which of them a step's program has, and each row's factors.

Rows of a step may have different adapters. A step in which no request says which it wants runs by the model's
own program. Knows requests, plans and compile options; nothing of files.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.passes.lora import FACTORS, Adapter
from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.plans.step_plan import StepPlan

MOST_ADAPTERS = 16
"""Different ones of the requests that run or wait; each costs two small products in a step with any."""


class RequestAdapters:
    """options: of the model, whose adapters belong to requests that name none."""

    def __init__(self, options: CompileOptions) -> None:
        self._options, self._known = options, options.adapters
        # Weakly: a request that is refused after it was added leaves nothing behind.
        self._users: dict[Adapter, weakref.WeakSet[Sequence]] = {}

    def add(self, sequences: Iterable[Sequence]) -> CompileOptions | None:
        """Sequences of a request are going to run: the options of their programs; None for the model's own.

        UsageError for more adapters than a program has. Called by one thread at a time.
        """
        members = list(sequences)
        applied = [use.adapter for use in members[0].request.adapters or ()]
        users = {
            adapter: weakref.WeakSet(sequence for sequence in held if sequence.status is not Status.FINISHED)
            for adapter, held in self._users.items()
        }
        for adapter in applied:
            users.setdefault(adapter, weakref.WeakSet()).update(members)
        own = self._options.adapters
        known = [
            *own,
            *(
                adapter
                for adapter in users
                if adapter not in own and (users[adapter] or adapter in self._known)
            ),
        ]
        while len(known) > max(MOST_ADAPTERS, len(own)):
            idle = next((adapter for adapter in known if adapter not in own and not users[adapter]), None)
            if idle is None:
                raise UsageError(
                    f"lora: wanted at most {MOST_ADAPTERS} different adapters of requests at a time; "
                    f"got {len(known)}"
                )
            known.remove(idle)
        self._users = {adapter: users.get(adapter, weakref.WeakSet()) for adapter in known}
        # A row's sums are made in this order, which must not depend on who came first.
        others = sorted(known[len(own) :], key=lambda adapter: adapter.fingerprint)
        self._known = (*own, *others)
        return None if members[0].request.adapters is None else self._named()

    def of(self, plan: StepPlan) -> CompileOptions | None:
        """The options of a plan's program; None where no request of it names its adapters."""
        named = any(rows.sequence.request.adapters is not None for rows in plan.rows)
        return self._named() if named else None

    def _named(self) -> CompileOptions:
        known = self._known
        return replace(self._options, adapters=known, factors=(0.0,) * len(known))

    def write(self, feed: Mapping[str, Array], plan: StepPlan, options: CompileOptions) -> None:
        """Write each row's factors of the options' adapters, for a program that has any."""
        factors, end = feed[FACTORS], 0
        own = (plan.options or self._options).factors
        for rows in plan.rows:
            first, end = end, end + rows.count
            factors[first:end] = 0.0
            request = rows.sequence.request
            if request.adapters is None:
                factors[first:end, : len(own)] = own
            positions = np.arange(rows.start, rows.start + rows.count)
            for applied in request.adapters or ():
                column = factors[first:end, options.adapters.index(applied.adapter)]
                column += np.where(positions >= applied.start, np.float32(applied.factor), np.float32(0))
