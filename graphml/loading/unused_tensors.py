"""Warning about tensors of a file that no graph uses, once per process and file.

Knows names alone; nothing of graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from graphml.weights.cursor import quoted

LOG = logging.getLogger(__name__)
LONGEST_SHOWN = 100
_TOLD: set[tuple[object, ...]] = set()


def tell_unused(path: Path, built_by: str, names: Sequence[str]) -> None:
    """Warn of unused tensors: the file may need another computation than the one built."""
    key = (path, built_by, *names)
    if names and key not in _TOLD:
        _TOLD.add(key)
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        LOG.warning("%s: %s does not use %s%s", path, built_by, ", ".join(map(_shown, names[:8])), more)


def _shown(name: str) -> str:
    """The name as it is; quoted and cut if it is long or has control characters."""
    return name if name.isprintable() and len(name) <= LONGEST_SHOWN else quoted(name)
