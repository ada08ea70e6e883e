"""Rows by index, choices and matrix products in PyTorch. Indices outside as in `ir.ops.rows_by_number`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphml.ir.dtype import DType, dtype
from graphml.ir.op import Attributes, integer, text
from graphml.ir.ops.linear import decode, encode
from graphml.ir.ops.rows_by_number import written


def known_rows(numbers: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Row numbers, int64, 0 in place of one outside n rows; and where they are inside."""
    known = (numbers >= 0) & (numbers < n)
    return torch.where(known, numbers, 0).long(), known


def rows_at(table: Tensor, numbers: Tensor) -> Tensor:
    """Rows of a table by their numbers, zeros for one outside."""
    if not len(table):
        return table.new_zeros(*numbers.shape, *table.shape[1:])
    at, known = known_rows(numbers, len(table))
    return torch.where(known.reshape(*known.shape, *[1] * (table.ndim - 1)), table[at], 0)


def decoded(x: Tensor, kind: DType) -> Tensor:
    """Plain numbers of a tensor: packed ones are bytes, without a gradient."""
    if x.dtype != torch.uint8:
        return x if x.dtype == torch.get_default_dtype() else x.to(torch.get_default_dtype())
    plain = torch.from_numpy(decode(x.detach().cpu().numpy(), kind))
    return plain.to(x.device, torch.get_default_dtype())


def encoded(x: Tensor, kind: DType) -> Tensor:
    """A tensor as its dtype keeps it, of a packed one as bytes."""
    if kind.is_format:
        return torch.from_numpy(encode(x.detach().cpu().float().numpy(), kind)).to(x.device)
    return x if kind.name == "f32" else x.to({"f16": torch.float16, "i32": torch.int32}[kind.name])


def _set_rows(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, Tensor]:
    state, x, rows = inputs
    chosen = torch.from_numpy(written(rows.detach().cpu().numpy(), len(state))).to(x.device)
    values = x[chosen]
    if state.dtype == torch.uint8:
        values = encoded(values, dtype(text(attributes, "to_dtype")))
    changed = state.index_put((rows[chosen].long(),), values.to(state.dtype))
    return changed, changed


def _gather(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x, ids = inputs
    at, known = known_rows(ids, x.shape[-1])
    return torch.where(known, x.gather(-1, at), 0)


def _top_k(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    order = torch.sort(-inputs[0], dim=-1, stable=True).indices
    return order[..., : integer(attributes, "k")].to(torch.int32)


def _top_k_groups(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    (x,) = inputs
    groups = x.reshape(*x.shape[:-1], integer(attributes, "n_group"), -1)
    scores = groups.topk(2, -1).values.sum(-1)
    order = torch.sort(-scores, dim=-1, stable=True).indices[..., : integer(attributes, "n_group_used")]
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)
    return torch.where(kept[..., None], groups, float("-inf")).reshape(x.shape)


def _column_numbers(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    row = torch.arange(integer(attributes, "n"), device=inputs[0].device) // integer(attributes, "each")
    return row.to(torch.int32).expand(len(inputs[0]), -1)


def _mul_mat_id(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    weight, x, ids = inputs
    x = (x if x.ndim == 3 else x[:, None, :]).expand(*ids.shape, x.shape[-1])
    y = x.new_zeros(*ids.shape, weight.shape[1])
    for expert in torch.unique(ids[(ids >= 0) & (ids < len(weight))]).tolist():
        chosen = ids == expert
        y = y.index_put((chosen,), x[chosen] @ weight[expert].T)
    return y


MEANINGS: Mapping[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "get_rows": lambda inputs, at: decoded(rows_at(*inputs), dtype(text(at, "from_dtype"))),
    "set_rows": _set_rows,
    "gather": _gather,
    "top_k": _top_k,
    "top_k_groups": _top_k_groups,
    "column_numbers": _column_numbers,
    "dequantize": lambda inputs, at: decoded(inputs[0], dtype(text(at, "from_dtype"))),
    "quantize": lambda inputs, at: encoded(inputs[0], dtype(text(at, "dtype"))),
    "mul_mat": lambda inputs, at: inputs[1] @ inputs[0].T,
    "mul_mat_batch": lambda inputs, at: inputs[1] @ inputs[0].transpose(-1, -2),
    "mul_mat_id": _mul_mat_id,
}
