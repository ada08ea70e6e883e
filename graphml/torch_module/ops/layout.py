"""Shapes, reductions, positions and constants in PyTorch, as `graphml.ir.ops` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphml.ir.op import Attributes, integer, integers, number
from graphml.ir.ops.position import frequencies, magnitude
from graphml.torch_module.ops.index import known_rows


def _reshape(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    kept = integer(attributes, "keep")
    return inputs[0].reshape(*inputs[0].shape[:kept], *integers(attributes, "tail"))


def _constant(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    values: Any = attributes["values"]
    whole = all(type(value) is int for value in values)
    kind = torch.int32 if whole else torch.get_default_dtype()
    # Numbers of the graph are float32, whatever the module computes in.
    array = np.array(values, np.int32 if whole else np.float32).reshape(integers(attributes, "shape"))
    return torch.from_numpy(array).to(kind)


def _cumsum(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    return inputs[0].cumsum(-1)


def _mean_rows(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, rows, sequences, lengths = inputs
    at, known = known_rows(rows, len(sequences))
    of = torch.where(known, sequences[at], -1).long()
    kept = (of >= 0) & (of < len(lengths))
    sums = x.new_zeros(len(lengths), x.shape[1]).index_add(0, of[kept], x[kept])
    counts = x.new_zeros(len(lengths)).index_add(0, of[kept], x.new_ones(int(kept.sum())))
    return sums / counts.clamp_min(1)[:, None]


def _rope_table(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    kind = torch.get_default_dtype()
    plain = dict(attributes) | {"ext_factor": 0.0, "freq_scale": 1.0}
    if len(inputs) > 1 and number(attributes, "ext_factor") == 0.0:  # factors are weights, with a gradient
        whole = torch.from_numpy(frequencies(plain, None)).to(inputs[1].device)
        frequency = whole / inputs[1].double() * number(attributes, "freq_scale")
    else:
        factors = inputs[1].detach().cpu().numpy() if len(inputs) > 1 else None
        frequency = torch.from_numpy(frequencies(attributes, factors))
    angle = inputs[0].double()[:, None] * frequency.to(inputs[0].device)
    table = torch.stack([angle.cos(), angle.sin()], -1) * magnitude(attributes)
    return table.to(kind)


def _rope(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, table = inputs
    half = table.shape[1]
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    rest = x[..., 2 * half :]
    if attributes["mode"] == "norm":
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
        turned = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    return torch.cat([turned, rest], -1)


def _position_scale(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    steps = torch.div(
        inputs[0].double() + integer(attributes, "offset"), integer(attributes, "step"), rounding_mode="floor"
    )
    scale = 1.0 + number(attributes, "factor") * torch.log1p(steps)
    return scale[:, None, None].to(torch.get_default_dtype())


def _neighbours(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, sequences, positions = inputs
    reach = integer(attributes, "reach")
    places = list(zip(sequences.tolist(), positions.tolist(), strict=True))
    row_at = {place: t for t, place in enumerate(places)}
    numbers = [
        [
            row_at.get((sequence, position + offset), -1) if sequence >= 0 else -1
            for offset in range(-reach, reach + 1)
        ]
        for sequence, position in places
    ]
    at, known = known_rows(torch.tensor(numbers, device=x.device), len(x))
    return torch.where(known[..., None], x[at], 0).transpose(1, 2)


def _text_means(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, sequences = inputs
    y = torch.zeros_like(x)
    for sequence in torch.unique(sequences[sequences >= 0]).tolist():
        own = sequences == sequence
        y = torch.where(own[:, None], x[own].mean(0, keepdim=True), y)
    return y


MEANINGS: Mapping[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "reshape": _reshape,
    "permute": lambda inputs, at: inputs[0].permute(integers(at, "axes")),
    "part": lambda inputs, at: inputs[0][integer(at, "index")],
    "concat": lambda inputs, at: torch.cat(list(inputs), -1),
    "columns": lambda inputs, at: inputs[0][..., integer(at, "start") : integer(at, "stop")],
    "repeat": lambda inputs, at: inputs[0].repeat_interleave(integer(at, "n"), 1),
    "constant": _constant,
    "softmax": lambda inputs, at: inputs[0].softmax(-1),
    "sum_rows": lambda inputs, at: inputs[0].sum(-1, keepdim=True),
    "max_rows": lambda inputs, at: inputs[0].amax(-1, keepdim=True),
    "min_rows": lambda inputs, at: inputs[0].amin(-1, keepdim=True),
    "cumsum": _cumsum,
    "mean_rows": _mean_rows,
    "text_means": _text_means,
    "neighbours": _neighbours,
    "rope_table": _rope_table,
    "rope": _rope,
    "position_scale": _position_scale,
}
