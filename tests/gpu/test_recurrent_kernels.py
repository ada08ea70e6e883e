"""Kernels with a memory, of sparse attention, and of batched products in the emulator.

It finds races and reads out of bounds.

With subgroups neighbours share a row of a memory; processors have no such devices.
"""

from __future__ import annotations

from math import prod

import pytest
from graphml_gpu.backend import make_backend
from graphml_gpu.lowering import select_blocks as lowering
from graphml_gpu.node_support import GpuNodeSupport
from graphml_gpu.plain_driver import PlainDriver

from graphml.conformance import suite
from graphml.conformance.cases import Case
from graphml.conformance.trial import Trial, TrialRun
from graphml.ir.dtype import F32, I32
from graphml.ir.language import Builder
from graphml.ir.op import Op
from graphml.ir.ops.layout import permute
from graphml.ir.ops.linear import mul_mat_batch
from graphml.ir.ops.linear_attention import gated_delta_net, linear_attention
from graphml.ir.ops.ngram import ngram_rows
from graphml.ir.ops.reduce import mean_rows
from graphml.ir.ops.relative import relative_attention
from graphml.ir.ops.sparse import select_blocks, selected_attention
from graphml.ir.shape import bounds
from tests.gpu.on_devices import DEVICES, REAL, device

MEMORIES = (gated_delta_net, linear_attention)
OPS = (
    *MEMORIES, ngram_rows, mean_rows, relative_attention, select_blocks, selected_attention, mul_mat_batch,
    permute,
)  # fmt: skip
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
    assert not [str(verdict) for verdict in trial.run(TrialRun(3)) if verdict.failed]


@pytest.mark.parametrize("name", DEVICES)
def test_many_tokens_are_gone_through_piece_by_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_MOST_BYTES", 1)
    trial = Trial(cases_of(select_blocks), PLAIN, device(name), "graphml", in_arena=False)
    assert not [
        str(verdict) for tokens in (3, 2) for verdict in trial.run(TrialRun(tokens)) if verdict.failed
    ]


@pytest.mark.parametrize(("width", "refused"), [(6, True), (8, False)])
def test_keys_of_an_odd_width_are_left_to_numpy(width: int, refused: bool) -> None:
    g = Builder()
    state, keys = g.state("state", F32, (1, 2, 4, width)), g.input("k", F32, (3, 2, width))
    values, tokens = g.input("v", F32, (3, 2, 4)), [g.input(name, I32, (3,)) for name in ("s", "p")]
    node = g.call(linear_attention, state, keys, keys, values, *tokens)
    assert (GpuNodeSupport("plain").refuses(node) is not None) == refused
