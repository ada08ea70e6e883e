"""Verdicts on values: pass or fail, with a description of the error.

Knows arrays and limits; nothing of backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphml.inspect.bisect.inside import where
from graphml.inspect.compare.tolerances import nmse, tolerance
from graphml.ir.node import Node
from graphml.ir.op import Array

# The limits of ggml's test-backend-ops, for backends that compute in half precision or by fast functions.
GGML = {"moved": 0.0, "default": 1e-7, "softmax": 1e-6, "product": 5e-4}
LIMITS = ("graphml", "ggml")


@dataclass(frozen=True)
class Verdict:
    """The result of a case.

    run: the reported run, the first that failed or the worst. nmse, limit: the error and its limit. problem:
    a description; "" if nothing is wrong. refused: why the backend has no kernel; None if it has one.
    max_ulp: of an op of one's own, the largest distance from the wanted value in steps of float32.
    """

    case: str
    op: str
    format: str
    call: str
    run: str
    nmse: float
    limit: float
    problem: str = ""
    refused: str | None = None
    max_ulp: int = 0

    @property
    def failed(self) -> bool:
        """Whether the case failed."""
        return bool(self.problem)

    def __str__(self) -> str:
        what = f"{self.case}: {self.call}"
        return f"{what}, {self.run}: {self.problem}" if self.problem else f"{what}: NMSE {self.nmse:.1e}"


def limit_of(nodes: Sequence[Node], limits: str) -> float:
    """The NMSE allowed for nodes together, by graphml's own limits or by those of ggml."""
    if limits == "graphml":
        return tolerance(nodes)
    permitted = [GGML["moved"]]
    for node in nodes:
        name, family = node.op.name, node.op.family
        if family in ("linear", "attention") or name.startswith(("linear", "mul_mat")):
            permitted.append(GGML["product"])
        elif name == "softmax" or family not in ("layout", "index", "leaf"):
            permitted.append(GGML["softmax" if name == "softmax" else "default"])
        else:
            permitted.append(GGML["default"] if node.op.is_write else GGML["moved"])
    return max(permitted)


def judge(got: Array, wanted: Array, limit: float) -> tuple[float, str]:
    """The NMSE, and a description of the error: "" if there is none."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return np.inf, f"is {got.dtype}{list(got.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind in "iu":
        if np.array_equal(got, wanted):
            return 0.0, ""
        return np.inf, f"{where(got, wanted)}; {_worst(got, wanted)}"
    error = nmse(got, wanted)
    if error <= limit:
        return error, ""
    misplaced = np.isfinite(got) != np.isfinite(wanted)
    misplaced |= ~np.isfinite(wanted) & (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
    what = f"NMSE {error:.1e}, allowed {limit:.0e}"
    if misplaced.any():
        what = "NaN or infinity is not where it should be"
    return error, f"{what}; {where(got, wanted)}; {_worst(got, wanted, misplaced)}"


def _worst(got: Array, wanted: Array, misplaced: Array | None = None) -> str:
    """The element with the largest error, or the first that is not finite but should be."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    if misplaced is not None and misplaced.any():
        at = np.unravel_index(int(misplaced.argmax()), misplaced.shape)
    else:
        both = np.isfinite(a) & np.isfinite(b)
        error = np.where(both, np.abs(np.where(both, a, 0) - np.where(both, b, 0)), 0)
        at = np.unravel_index(int(error.argmax()), error.shape)
    return f"worst at {[int(i) for i in at]}: {got[at]:.7g}, wanted {wanted[at]:.7g}"
