"""What requests of an engine capture, patch and are steered by: their compile options, prepared and bounded.

Knows requests, options and a runner; nothing of steps or HTTP.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

from graphml.api.capture import Patches, Patterns, Probe
from graphml.api.draft_choice import check_no_drafts
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.long_texts import is_long
from graphml.runtime.blocks.request import Request, extra_of
from graphml.runtime.blocks.row_patches import PatchPoint, PatchRows, positions_of
from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.programs.adapter_options import Layers, Scaled, with_control
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.runner import Runner

MOST_KINDS = 8
"""Different options of requests whose programs are kept, or which run or wait at a time."""


class TooManyKindsError(UsageError):
    """Requests with other options run or wait, as many as there may be: later it may be right."""


@dataclass(frozen=True)
class Probed:
    """What a request has besides others; arguments of `Engine.submit`. positions: see `Probe`."""

    capture: Patterns = ()
    patch: Patches | None = None
    control_vectors: Scaled | None = None
    control_layers: Layers | None = None
    positions: Collection[int] | None = None

    @property
    def some(self) -> bool:
        """Whether there is anything."""
        rest = self.control_vectors, self.control_layers, self.positions
        return self.capture != () or self.patch is not None or any(option is not None for option in rest)


NOT_PROBED = Probed()


class RequestProbes:
    """Those of one engine."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._lock = executor, threading.Lock()
        self._points: weakref.WeakValueDictionary[str, PatchPoint] = weakref.WeakValueDictionary()
        self._users: dict[CompileOptions, weakref.WeakSet[Sequence]] = {}  # the latest kind last

    def added(self, request: Request, probed: Probed, salt: bytes, guided: bool) -> tuple[Request, Probe]:
        """The request with its options, and its probe; a UsageError as of `Engine.submit`."""
        executor = self._executor
        options = with_control(executor.options, executor.file, probed.control_vectors, probed.control_layers)
        if request.adapters is not None:
            own = tuple(dict.fromkeys(applied.adapter for applied in request.adapters))
            options = replace(options, adapters=own, factors=(0.0,) * len(own))
        positions = probed.positions if probed.positions is None else positions_of(probed.positions)
        probe = Probe(
            executor, probed.capture, probed.patch, options=options, points=self._points, positions=positions
        )
        if positions is not None and not probe.captures:
            raise UsageError("positions: wanted capture, too: they say which rows of it are kept")
        if probe.options is options and options.control is executor.options.control:
            return request, probe
        patches = [patch for patch in probe.patches.values() if isinstance(patch, PatchRows)]
        if request.full.shifts and any(patch.positions is not None for patch in patches):
            raise UsageError(
                "overflow: wanted stop or error for a request with patches at positions: what a shift keeps "
                "is computed anew at others"
            )
        if request.max_tokens is not None:
            _check_reached(probe, positions or (), request.n_prompt + max(request.max_tokens - 1, 0))
        if guided:
            raise UsageError("guidance_scale: wanted 1 for a request with capture, patch or control_vectors")
        if probe.captures and request.n > 1:
            raise UsageError(f"n: wanted 1 for a request with capture; got {request.n}")
        check_no_drafts(request.params, "a request with capture, patch or control_vectors")
        # Its keys and values are of use to others only where the same programs compute them of ids alone.
        is_own = probe.captures or probe.patches
        salt += secrets.token_bytes(16) if is_own else repr(probe.options.added).encode()
        long = is_long(executor.long_inputs, request.n_prompt)
        extra = extra_of(request.source, request.adapters, salt, long)
        return replace(request, options=probe.options, patches=probe.patches, extra=extra), probe

    def prepare(self, sequences: tuple[Sequence, ...], runner: Runner) -> None:
        """Have the programs of a request's sequences, which are going to run. UsageError for too many."""
        (first, *_), forget = sequences, None
        options = first.request.options
        if options is None:
            return
        with self._lock:
            users = self._users.pop(options, weakref.WeakSet())
            users.update(sequences)
            if len(self._users) >= MOST_KINDS:
                forget = next((kind for kind, held in self._users.items() if not _in_use(held)), None)
                if forget is None:
                    raise TooManyKindsError(
                        f"capture: wanted requests with at most {MOST_KINDS} different sets of captured and "
                        "patched values at a time; wait until one has ended"
                    )
                del self._users[forget]
            self._users[options] = users
        if forget is not None:
            self._executor.programs.forget(forget)
        all_rows = first.captured is not None and first.captured.of_outputs
        runner.prepare_options(options, all_rows)

    def close(self) -> None:
        """Let go of the programs."""
        for options in self._users:
            self._executor.programs.forget(options)
        self._users = {}


def _check_reached(probe: Probe, positions: Collection[int], most: int) -> None:
    """UsageError for a position that a request never computes; most: tokens that it computes at most."""
    patches = [patch for patch in probe.patches.values() if isinstance(patch, PatchRows)]
    for place in chain(positions, *(patch.positions or () for patch in patches)):
        if place >= most:
            raise UsageError(f"positions: wanted numbers below {most}, the tokens computed; got {place}")


def _in_use(sequences: Collection[Sequence]) -> bool:
    return any(sequence.status is not Status.FINISHED for sequence in sequences)
