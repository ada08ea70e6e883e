"""What a run of fusions did: those that were applied, and near misses with their reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class AppliedFusion:
    """An applied fusion: the fused node's name and the names, as built, of all nodes that it covers."""

    fusion: str
    node: str
    covered: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """A near miss: the root's name, the condition that failed, and the node at which it failed."""

    fusion: str
    node: str
    reason: str
    at: str | None = None


@dataclass(frozen=True)
class FusionLog:
    """The applied fusions and the near misses."""

    applied: tuple[AppliedFusion, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How often each fusion was applied; those that never were are left out."""
        return dict(Counter(item.fusion for item in self.applied))

    def __add__(self, later: FusionLog) -> FusionLog:
        """This log and that of a later run over the resulting graph.

        For nodes that the later run tried again, its entries replace those of this log.
        """
        refused = dict.fromkeys((*self.refused, *later.refused))
        return FusionLog(self.applied + later.applied, tuple(refused))
