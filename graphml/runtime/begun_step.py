"""A step that was submitted before the steps in front of it are done. Knows values alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphml.ir.op import Array


@dataclass(frozen=True, eq=False)
class Begun:
    """A submitted step: its number among the executor's, and a function that waits for its outputs."""

    number: int
    outputs: Callable[[], Mapping[str, Array]]
