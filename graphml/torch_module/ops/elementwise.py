"""Elementwise ops and norms in PyTorch; formulas as in `graphml.ir.ops.elementwise` and `norm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from graphml.ir.op import Attributes, integer, number, text

_I32 = torch.iinfo(torch.int32)


def _of_one(meaning: Callable[[Tensor], Tensor]) -> Callable[[Sequence[Tensor], Attributes], Tensor]:
    return lambda inputs, attributes: meaning(inputs[0])


def _of_two(meaning: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Sequence[Tensor], Attributes], Tensor]:
    return lambda inputs, attributes: meaning(inputs[0], inputs[1])


def _compared(meaning: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: meaning(a, b).to(a.dtype)


def _cast(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    (x,) = inputs
    if text(attributes, "dtype") == "f32":
        return x.to(torch.get_default_dtype())
    whole = torch.nan_to_num(x.double(), nan=0.0, posinf=_I32.max, neginf=_I32.min).trunc()
    return whole.clamp(_I32.min, _I32.max).to(torch.int32)


def _layer_norm(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    x = inputs[0] - inputs[0].mean(-1, keepdim=True)
    return x / ((x * x).mean(-1, keepdim=True) + number(attributes, "eps")).sqrt()


def _rms_norm(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    (x,) = inputs
    return x / ((x * x).mean(-1, keepdim=True) + number(attributes, "eps")).sqrt()


def _l2_norm(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    (x,) = inputs
    return x / (x * x).sum(-1, keepdim=True).sqrt().clamp_min(number(attributes, "eps"))


def _walsh_hadamard(inputs: Sequence[Tensor], attributes: Attributes) -> Tensor:
    block = integer(attributes, "block")
    x, half = inputs[0].reshape(-1, block), 1
    while half < block:
        pairs = x.reshape(-1, block // (2 * half), 2, half)
        x = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2)
        x, half = x.reshape(-1, block), 2 * half
    return (x / block**0.5).reshape(inputs[0].shape)


MEANINGS: Mapping[str, Callable[[Sequence[Tensor], Attributes], Tensor]] = {
    "add": _of_two(torch.add),
    "sub": _of_two(torch.sub),
    "mul": _of_two(torch.mul),
    "div": _of_two(torch.div),
    "maximum": _of_two(torch.maximum),
    "minimum": _of_two(torch.minimum),
    "less": _of_two(_compared(torch.lt)),
    "less_equal": _of_two(_compared(torch.le)),
    "equal": _of_two(_compared(torch.eq)),
    "neg": _of_one(torch.neg),
    "abs": _of_one(torch.abs),
    "sqr": _of_one(torch.square),
    "sqrt": _of_one(torch.sqrt),
    "exp": _of_one(torch.exp),
    "log": _of_one(torch.log),
    "floor": _of_one(torch.floor),
    "round": _of_one(torch.round),
    "tanh": _of_one(torch.tanh),
    "sigmoid": _of_one(torch.sigmoid),
    "relu": _of_one(functional.relu),
    "silu": _of_one(functional.silu),
    "gelu": _of_one(lambda x: functional.gelu(x, approximate="tanh")),
    "gelu_erf": _of_one(functional.gelu),
    "gelu_quick": _of_one(lambda x: x * torch.sigmoid(1.702 * x)),
    "softplus": _of_one(functional.softplus),
    "scale": lambda inputs, at: inputs[0] * number(at, "factor") + number(at, "offset"),
    "clamp": lambda inputs, at: inputs[0].clamp(number(at, "low"), number(at, "high")),
    "where": lambda inputs, at: torch.where(inputs[0] != 0, inputs[1], inputs[2]),
    "cast": _cast,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "l2_norm": _l2_norm,
    "walsh_hadamard": _walsh_hadamard,
}
