"""Kernels with a memory, and of sparse attention, in the emulator: it finds races and reads out of bounds.

With subgroups neighbours share a row of a memory; processors have no such devices.
"""

from __future__ import annotations

from math import prod

import pytest
from graphml_gpu.backend import make_backend
from graphml_gpu.plain_driver import PlainDriver

from graphml.inspect.conformance import suite
from graphml.inspect.conformance.cases import Case
from graphml.inspect.conformance.trial import Run, Trial
from graphml.ir.op import Op
from graphml.ir.ops.linear_attention import gated_delta_net, linear_attention
from graphml.ir.ops.ngram import ngram_rows
from graphml.ir.ops.reduce import mean_rows
from graphml.ir.ops.relative import relative_attention
from graphml.ir.ops.sparse import select_spans, selected_attention
from graphml.ir.shape import bounds
from tests.gpu.on_devices import DEVICES, REAL, device

MEMORIES = (gated_delta_net, linear_attention)
OPS = (*MEMORIES, ngram_rows, mean_rows, relative_attention, select_spans, selected_attention)
PLAIN = make_backend("plain", PlainDriver, unavailable=lambda: None)
MOST = 4096  # elements of an operand: the emulator is slow


def cases_of(op: Op) -> list[Case]:
    """Of plain numbers, the small ones."""
    return [
        case.at(3)
        for case in suite.chosen(PLAIN, op.name, ["f32"])
        if case.inplace < 0 and all(prod(bounds(kind.shape[1:])) <= MOST for kind in case.sample.inputs)
    ]


@pytest.mark.parametrize("name", [name for name in DEVICES if name not in REAL])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_results_and_states_are_those_of_numpy(op: Op, name: str) -> None:
    some = cases_of(op)
    assert some
    trial = Trial(some, PLAIN, device(name), "graphml", in_arena=False)
    assert not any(trial.refused)
    assert not [str(verdict) for verdict in trial.run(Run(3)) if verdict.failed]
