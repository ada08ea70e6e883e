"""Sampling a token: by the meanings in NumPy, since nothing of it has a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphml.ir.op import Attributes, Op
from graphml.ir.ops.sampling import sample_row, sample_token


def _by_numpy(op: Op) -> Callable[[Sequence[Tensor], Attributes], Tensor]:
    def meaning(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
        arrays = [x.detach().cpu().numpy() for x in inputs]
        arrays = [x.astype("f4") if x.dtype.kind == "f" else x for x in arrays]
        assert op.reference is not None
        return torch.from_numpy(op.reference(arrays, attributes)).to(inputs[0].device)

    return meaning


MEANINGS: Mapping[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "sample_row": _by_numpy(sample_row),
    "sample_token": _by_numpy(sample_token),
}
