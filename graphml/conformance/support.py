"""Support table: the ops and formats that a backend has kernels for, and reasons if not. Runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from graphml.backend import Backend
from graphml.conformance.cases import Case
from graphml.conformance.suite import sizes_of
from graphml.conformance.trial import build
from graphml.ir.ops.leaf import LEAVES
from graphml.passes.fusion import all_ops
from graphml.passes.pipeline import has_kernels

NATIVE, NUMPY, SOME, VIEW, APART = "native", "NumPy", "some native", "view", "taken apart"


@dataclass(frozen=True)
class Support:
    """The way in which an op with a format is run.

    how: `native`; `NumPy`, between the kernels; `some native`, the rest in NumPy; `view`, which computes
    nothing; `taken apart`, a fused op that the backend never receives. reasons: why not native, each once.
    """

    op: str
    format: str
    how: str
    reasons: tuple[str, ...] = ()


def support(backend: Backend, some: Sequence[Case]) -> list[Support]:
    """One entry for each op and format of the cases, and for each fused op without a kernel."""
    supports = []
    for (op, form), same in groupby(sorted(some, key=_key), key=_key):
        supports.append(_of(backend, op, form, list(same)))
    return supports


def apart(backend: Backend) -> list[Support]:
    """The fused ops that the backend has no kernels for; such a graph is not fused."""
    return [
        Support(name, "f32", APART)
        for name, op in sorted(all_ops().items())
        if op not in LEAVES and op.decompose is not None and not has_kernels(backend, op)
    ]


def _key(case: Case) -> tuple[str, str]:
    return case.op.name, case.format


def _of(backend: Backend, op: str, form: str, same: Sequence[Case]) -> Support:
    if same[0].op.view:
        return Support(op, form, VIEW)
    asked = [
        backend.refuses(build([case.at(tokens)])[1][0].node) for case in same for tokens in sizes_of(case)
    ]
    reasons = tuple(dict.fromkeys(reason for reason in asked if reason is not None))
    how = NATIVE if not reasons else NUMPY if None not in asked else SOME
    return Support(op, form, how, reasons)
