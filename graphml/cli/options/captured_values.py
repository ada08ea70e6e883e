"""The options of values that a session captures, and the file that they are written to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import graphml
from graphml.cli.options.checks import check_target
from graphml.errors import UsageError


@dataclass(frozen=True)
class CaptureOptions:
    """As they are given; `check` checks them."""

    capture: Annotated[
        list[str] | None,
        typer.Option(
            "--capture",
            metavar="PATTERN",
            help="Intermediate values to save in --captured, such as layers.*.attention; may be given again.",
        ),
    ] = None
    captured: Annotated[
        Path | None,
        typer.Option("--captured", metavar="FILE.npz", help="File for the values of --capture."),
    ] = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """What is captured; none where nothing is."""
        return tuple(self.capture or ())

    def check(self) -> None:
        """UsageError for patterns without a file, a file without patterns, or one that cannot be made."""
        if bool(self.capture) != (self.captured is not None):
            raise UsageError("--capture, --captured: wanted both, patterns of values and a file for them")
        if self.captured is not None and self.captured.suffix != ".npz":
            raise UsageError(f"--captured: wanted a name that ends in .npz; got {str(self.captured)!r}")
        check_target("--captured", self.captured)

    def write(self, session: graphml.Session) -> None:
        """Write each value of each evaluation under EVALUATION.NAME; the first evaluation has number 0."""
        if self.captured is None:
            return
        arrays: dict[str, Any] = {
            f"{i}.{name}": array for i, values in enumerate(session.history) for name, array in values.items()
        }
        try:
            np.savez(self.captured, **arrays)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--captured {self.captured}: cannot be written: {reason}") from None
