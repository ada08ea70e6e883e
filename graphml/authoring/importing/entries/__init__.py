"""What is recognised, one file an entry: each has `ENTRY`, and is found by its place."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from graphml.authoring.importing.region import CatalogueEntry


@functools.cache
def entries() -> tuple[CatalogueEntry, ...]:
    """All entries, by the names of their files."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").ENTRY for name in names)
