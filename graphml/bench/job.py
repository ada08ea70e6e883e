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
from graphml.bench.measure import measure
from graphml.bench.result_rows import Context, Row, rows
from graphml.bench.side import ProcessSide, Side
from graphml.bench.test_plan import Setting, Test


@dataclass(frozen=True)
class Job:
    """The tests to measure, and the settings.

    engines: the sides of each setting as (engine, backend), the first of which is compared with the second.
    bandwidth: threads -> bytes per second that they read now; None: not measured. python: that of peers.
    hashed: whether rows have the model's checksum. arch: see `Setting`, for all settings.
    """

    settings: Sequence[Setting]
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

    def rows(self, progress: Progress = no_progress) -> Iterator[Row]:
        """Measure, and yield each row once it is measured."""
        digests: dict[str, str] = {}
        for setting in self.settings:
            if setting.model not in digests:
                digests[setting.model] = self.digest(setting, progress)
            yield from self._setting(setting, digests[setting.model], progress)

    def digest(self, setting: Setting, progress: Progress = no_progress) -> str:
        """The model's checksum, "" if rows do not have it."""
        return sha256(Path(setting.model), progress) if self.hashed else ""

    def shared(self, setting: Setting, sides: Sequence[Side], digest: str) -> Context:
        """The common fields of the rows of a setting, measured on these sides from now on."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Context(setting, [side.about for side in sides], self.environment, now, digest)

    def _setting(self, setting: Setting, digest: str, progress: Progress) -> Iterator[Row]:
        with ExitStack() as stack:
            sides = [
                stack.enter_context(
                    ProcessSide(replace(setting, engine=engine, backend=backend, arch=self.arch), self.python)
                )
                for engine, backend in self.engines
            ]
            shared = self.shared(setting, sides, digest)
            probe = None if self.bandwidth is None else partial(self.bandwidth, setting.threads)
            for found in measure(
                sides, self.tests, self.repetitions, probe, self.warm, delay_s=self.delay_s, progress=progress
            ):
                yield from rows(found, shared)
