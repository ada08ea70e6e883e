"""Which of several devices is used: a setting names it by its number or by a part of its name.

Knows no library.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.errors import BackendError
from graphml_gpu.driver import Facts

_ORDER = ("discrete", "integrated", "other", "cpu")


def rank(facts: Facts) -> int:
    """How early a device stands in a list: those with memory of their own first, processors last."""
    return _ORDER.index(facts.kind)


def title(facts: Facts) -> str:
    """A device in a line."""
    return f"{facts.name} ({facts.kind}, {facts.driver})"


def listing(devices: Sequence[Facts]) -> str:
    """The devices with their numbers, a line each."""
    return "\n".join(f"  {i}: {title(facts)}" for i, facts in enumerate(devices))


def choose(devices: Sequence[Facts], wanted: str | None, setting: str) -> int:
    """The number of the device that `wanted` names; None: the first. `BackendError` lists what there is."""
    if not devices:
        raise BackendError("this machine has no such device")
    if wanted is None:
        return 0
    if wanted.isdecimal():
        found = [int(wanted)] if int(wanted) < len(devices) else []
    else:
        found = [i for i, facts in enumerate(devices) if wanted.lower() in title(facts).lower()]
    if not found:
        text = "wanted the number of a device or a part of its name"
        raise BackendError(f"{setting}: {text}, got {wanted!r}; there are\n{listing(devices)}")
    return found[0]
