"""A whole benchmark: opens every setting on all its sides and measures every test on them, row by row.

Knows the parts of this folder; does none of their work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from graphml.backend import Progress, no_progress
from graphml.bench.describe import Environment, sha256
from graphml.bench.logit_check import JUDGE, N_PROMPT, LogitCheck, Logits, checked, tokens
from graphml.bench.machine_use import Energy
from graphml.bench.measure import measure
from graphml.bench.result_rows import Context, ResultRow, rows
from graphml.bench.side import MeasuredSide, ProcessSide
from graphml.bench.test_plan import SideParameters, Test
from graphml.errors import GraphmlError

CHECKING = "comparing logits"


@dataclass(frozen=True)
class Job:
    """The tests to measure, and the settings.

    engines: the sides of each setting as (engine, backend), the first of which is compared with the second.
    bandwidth: threads -> bytes per second that they read now; None: not measured. python: that of peers.
    hashed: whether rows have the model's checksum. arch: see `SideParameters`, for all settings. checked:
    whether the logits of several sides are compared with the reference's.
    """

    settings: Sequence[SideParameters]
    tests: Sequence[Test]
    engines: Sequence[tuple[str, str]]
    environment: Environment
    bandwidth: Callable[[int], float] | None = None
    python: str = sys.executable
    repetitions: int = 5
    warm: bool = True
    delay_s: float = 0.0
    hashed: bool = False
    arch: str = ""
    checked: bool = True

    def rows(self, progress: Progress = no_progress) -> Iterator[ResultRow]:
        """Measure, and yield each row once it is measured."""
        digests: dict[str, str] = {}
        known: dict[SideParameters, Logits] = {}
        for setting in self.settings:
            if setting.model not in digests:
                digests[setting.model] = self.digest(setting, progress)
            yield from self._setting(setting, digests[setting.model], known, progress)

    def digest(self, setting: SideParameters, progress: Progress = no_progress) -> str:
        """The model's checksum, "" if rows do not have it."""
        return sha256(Path(setting.model), progress) if self.hashed else ""

    def shared(self, setting: SideParameters, sides: Sequence[MeasuredSide], digest: str) -> Context:
        """The common fields of the rows of a setting, measured on these sides from now on."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Context(setting, [side.about for side in sides], self.environment, now, digest)

    def _correct(
        self, setting: SideParameters, sides: Sequence[ProcessSide], known: dict[SideParameters, Logits]
    ) -> tuple[list[LogitCheck], str]:
        """Whether each side's logits are the reference's; or why that cannot be said."""
        if not self.checked or len(sides) < 2:
            return [], ""
        usual = SideParameters("graphml", setting.model, JUDGE, setting.threads)
        kept = ("type_k", "type_v", "quant", "arch")
        judging = replace(usual, **{name: getattr(sides[0].setting, name) for name in kept})
        ids = tokens(int(sides[0].about["n_vocab"]))
        try:
            key = replace(judging, threads=0)
            if key not in known:
                with ProcessSide(judging) as judge:
                    known[key] = judge.logits(ids, N_PROMPT)
        except GraphmlError as error:
            return [], f"{error}"
        checks, why = list[LogitCheck](), ""
        for side in sides:
            try:
                judged = LogitCheck(JUDGE, 0.0) if side.name == JUDGE else None
                checks.append(judged or checked(side.logits(ids, N_PROMPT), known[key]))
            except GraphmlError as error:
                checks.append(LogitCheck())
                why = f"{error}"
        return checks, why

    def _setting(
        self, setting: SideParameters, digest: str, known: dict[SideParameters, Logits], progress: Progress
    ) -> Iterator[ResultRow]:
        with ExitStack() as stack:
            sides = [
                stack.enter_context(
                    ProcessSide(replace(setting, engine=engine, backend=backend, arch=self.arch), self.python)
                )
                for engine, backend in self.engines
            ]
            progress(CHECKING, 0, len(sides))
            correct, why = self._correct(setting, sides, known)
            progress(CHECKING, len(sides), len(sides))
            energy = Energy()
            shared = replace(
                self.shared(setting, sides, digest), correct=correct, why_unchecked=why,
                why_no_energy=energy.reason,
            )  # fmt: skip
            probe = None if self.bandwidth is None else partial(self.bandwidth, setting.threads)
            for measured in measure(
                sides, self.tests, self.repetitions, probe, self.warm, delay_s=self.delay_s,
                progress=progress, energy=energy,
            ):  # fmt: skip
                yield from rows(measured, shared)
