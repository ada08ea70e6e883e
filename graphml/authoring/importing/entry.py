"""`CatalogueEntry`: what is recognised by what a part of the graph computes. Knows the declaration alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphml.authoring.importing.region import Recognised, Region


@dataclass(frozen=True)
class CatalogueEntry:
    """looks: whether a region may be one, by its ops and shapes; matches: what it is, after running it."""

    name: str
    looks: Callable[[Region], bool]
    matches: Callable[[Region], Recognised | None]
