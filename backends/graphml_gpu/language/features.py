"""What a device offers to kernels. Knows no device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """What kernels may use. The default is what every device has; each is switched by `dataclasses.replace`.

    subgroup_min, subgroup_max: the invocations of a subgroup, where `subgroups`. f16: arithmetic in half
    precision. dot4: the product of four signed bytes in one instruction.
    """

    subgroups: bool = False
    subgroup_min: int = 1
    subgroup_max: int = 1
    f16: bool = False
    dot4: bool = False


PORTABLE = Features()
"""What every device has."""
