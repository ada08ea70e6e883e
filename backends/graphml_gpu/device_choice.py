"""Which of several devices is used, named by its number or by a part of its name; what it is, for a person.

Knows no library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphml.errors import BackendError
from graphml_gpu.driver import Facts

_ORDER = ("discrete", "integrated", "other", "cpu")


def rank(facts: Facts) -> int:
    """The rank of a device in a list: those with memory of their own first, processors last."""
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
        matches = [int(wanted)] if int(wanted) < len(devices) else []
    else:
        matches = [i for i, facts in enumerate(devices) if wanted.lower() in title(facts).lower()]
    if not matches:
        text = "wanted the number of a device or a part of its name"
        raise BackendError(f"{setting}: {text}, got {wanted!r}; there are\n{listing(devices)}")
    return matches[0]


def describe(devices: Sequence[Facts], used: int) -> Mapping[str, object]:
    """The facts of the device that is used, for `graphml doctor`, and the others in a line each."""
    facts = devices[used]
    offered = {
        "f16": facts.has_f16,
        "dot4": facts.has_dot4,
        f"subgroups of {facts.subgroup_min} to {facts.subgroup_max}": facts.has_subgroups,
        "timestamps": facts.has_timestamps,
    }
    return {
        "device": f"{used}: {title(facts)}",
        "vendor": facts.vendor,
        "features": ", ".join(name for name, has in offered.items() if has) or "none",
        "memory bytes": facts.memory_bytes if facts.memory_bytes is not None else "the library does not tell",
        "memory shared with the host": facts.unified_memory,
        "largest buffer bytes": facts.max_buffer_bytes,
        "largest binding bytes": facts.max_binding_bytes,
        "largest workgroup": facts.max_group,
        "shared memory bytes": facts.shared_bytes,
        "other devices": "; ".join(f"{i}: {title(f)}" for i, f in enumerate(devices) if i != used) or "none",
    }
