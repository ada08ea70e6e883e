"""What a device offers to kernels. Knows no device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Features:
    """What kernels may use. The default is what every device has; each is switched by `dataclasses.replace`.

    subgroup_min, subgroup_max: the invocations of a subgroup, where `subgroups`. f16: arithmetic in half
    precision. dot4: the product of four signed bytes in one instruction. keeps_negated: the compiler keeps
    what an invocation negated over barriers; without it OpenCL C is written without negations.
    """

    subgroups: bool = False
    subgroup_min: int = 1
    subgroup_max: int = 1
    f16: bool = False
    dot4: bool = False
    keeps_negated: bool = True


PORTABLE = Features()
"""What every device has."""


@dataclass
class AskedFeatures:
    """Features, and what a kernel asked of them: others with the same answers make the same of it."""

    features: Features
    answers: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        self.answers[name] = getattr(self.features, name)
        return self.answers[name]
