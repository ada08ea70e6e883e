"""Matrix products and the conversions around them. A weight is [out, in], as GGUF stores it."""

from __future__ import annotations

from collections.abc import Sequence

import graphml_quant
import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.activation_blocks import ACTIVATIONS, decode_activations, encode_activations
from graphml.ir.dtype import F32, I32, DType, dtype
from graphml.ir.op import Array, Attributes, Op, Sample, Type, text
from graphml.ir.ops.rows_by_number import inside
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below, want_dtype
from graphml.ir.shape import Dim, bound


def decode(array: Array, kind: DType) -> Array:
    """Array in a dtype's layout -> float32 of the same shape."""
    if not kind.is_format:
        return array.astype(np.float32, copy=False)
    if kind.name == ACTIVATIONS:
        return decode_activations(array)
    shape = (*array.shape[:-1], array.shape[-1] // kind.block_bytes * kind.block_elements)
    return graphml_quant.dequantize(graphml_quant.by_name(kind.name), array, shape)


def encode(array: Array, kind: DType) -> Array:
    """Float32 of any shape -> array in a dtype's layout; `FormatError` for values that the format refuses."""
    if kind.numpy is not None:
        return array.astype(kind.numpy)
    if kind.name == ACTIVATIONS:
        return encode_activations(array)
    return graphml_quant.quantize(graphml_quant.by_name(kind.name), array)


def _infer_dequantize(inputs: Sequence[Type], attributes: Attributes) -> Type:
    return Type(F32, inputs[0].shape)


def _infer_quantize(inputs: Sequence[Type], attributes: Attributes) -> Type:
    want_dtype(inputs[0], F32, "x")
    kind = dtype(text(attributes, "dtype"))
    if bound(inputs[0].shape[-1]) % kind.block_elements:
        raise ShapeError(
            f"wanted rows of a multiple of {kind.block_elements} for {kind.name}; got {inputs[0]}"
        )
    return Type(kind, inputs[0].shape)


def _quantize(inputs: Sequence[Array], attributes: Attributes) -> Array:
    try:
        return encode(inputs[0], dtype(text(attributes, "dtype")))
    except graphml_quant.FormatError as error:
        raise GraphError(f"[quantize] {error}") from None


def _infer_mul_mat(inputs: Sequence[Type], attributes: Attributes) -> Type:
    weight, x = inputs
    want_dtype(weight, F32, "weight")
    want_dtype(x, F32, "x")
    if len(weight.shape) != 2 or weight.shape[1] != x.shape[-1]:
        raise ShapeError(f"wanted weight [out, in] and x [..., in]; got weight {weight} and x {x}")
    return Type(F32, (*x.shape[:-1], weight.shape[0]))


def _infer_mul_mat_batch(inputs: Sequence[Type], attributes: Attributes) -> Type:
    weight, x = inputs
    want_dtype(weight, F32, "weight")
    want_dtype(x, F32, "x")
    *lead, n, k = weight.shape if len(weight.shape) > 2 else (0, 0)
    if not lead or len(x.shape) != len(weight.shape) or x.shape != (*lead, x.shape[-2], k):
        raise ShapeError(
            "wanted weight [..., out, in] and x [..., n, in] with the same leading dimensions, one or more; "
            f"got weight {weight} and x {x}"
        )
    return Type(F32, (*x.shape[:-1], n))


def _infer_mul_mat_id(inputs: Sequence[Type], attributes: Attributes) -> Type:
    weight, x, ids = inputs
    want_dtype(weight, F32, "weight")
    want_dtype(x, F32, "x")
    want_dtype(ids, I32, "ids")
    fits = len(weight.shape) == 3 and len(ids.shape) == 2 and len(x.shape) in (2, 3)
    fits = fits and weight.shape[2] == x.shape[-1] and x.shape[0] == ids.shape[0]
    if not fits or (len(x.shape) == 3 and x.shape[1] != ids.shape[1]):
        raise ShapeError(
            "wanted weight [expert, out, in], x [T, in] or [T, used, in] and ids [T, used]; "
            f"got weight {weight}, x {x}, ids {ids}"
        )
    return Type(F32, (*ids.shape, weight.shape[1]))


def mul_mat_id_reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Each token's x times the matrices of its experts: [T, used, out]; zeros for an expert outside."""
    weight, x, ids = inputs
    x = np.broadcast_to(x if x.ndim == 3 else x[:, None, :], (*ids.shape, x.shape[-1]))
    y = np.zeros((*ids.shape, weight.shape[1]), np.float32)
    for expert in np.unique(ids[inside(ids, len(weight))]):
        chosen = ids == expert
        y[chosen] = x[chosen] @ weight[expert].T
    return y


def _conversions() -> list[Sample]:
    return [Sample((f32(ROWS, n),)) for n in (32, 64, 288)]


def _matrices() -> list[Sample]:
    sizes = ((8, 32), (33, 64), (70, 96), (16, 7))
    return [Sample((f32(n, k), f32(ROWS, k))) for n, k in sizes]


def _batches() -> list[Sample]:
    shapes: tuple[tuple[Dim, ...], ...] = (
        (ROWS, 5, 24, 7), (ROWS, 3, 8, 20, 6), (3, 9, 64, 4), (ROWS, 33, 1, 6), (ROWS, 16, 65, 1),
        (ROWS, 70, 130, 17), (ROWS, 1, 3, 1),
    )  # fmt: skip
    return [Sample((f32(*lead, n, k), f32(*lead, m, k))) for *lead, n, k, m in shapes]


def _experts() -> list[Sample]:
    return [
        Sample((f32(6, 24, 32), f32(ROWS, 32), i32(ROWS, 2)), fill={2: below(6)}),
        Sample((f32(6, 24, 32), f32(ROWS, 2, 32), i32(ROWS, 2)), fill={2: below(6)}),
        Sample((f32(6, 24, 32), f32(ROWS, 32), i32(ROWS, 2)), fill={2: partly_below(6)}),
    ]


# An array of a block format does not know its format, hence `from_dtype`; the builder fills it in.
dequantize = Op("dequantize", "linear", infer=_infer_dequantize,
                reference=lambda inputs, at: decode(inputs[0], dtype(text(at, "from_dtype"))),
                samples=lambda: [Sample(s.inputs, {"from_dtype": "f32"}) for s in _conversions()],
                attributes={"from_dtype": None})  # fmt: skip
quantize = Op("quantize", "linear", infer=_infer_quantize, reference=_quantize,
              samples=lambda: [Sample(s.inputs, {"dtype": "q8_0"}) for s in _conversions()],
              attributes={"dtype": None})  # fmt: skip
mul_mat = Op("mul_mat", "linear", infer=_infer_mul_mat,
             reference=lambda inputs, at: inputs[1] @ inputs[0].T, samples=_matrices,
             rowwise=(1,))  # fmt: skip
# Its own op: a row of the result follows from that row of both operands, and no weight of a file is decoded.
mul_mat_batch = Op("mul_mat_batch", "linear", infer=_infer_mul_mat_batch,
                   reference=lambda inputs, at: inputs[1] @ np.swapaxes(inputs[0], -1, -2),
                   samples=_batches, rowwise=(0, 1))  # fmt: skip
mul_mat_id = Op("mul_mat_id", "linear", infer=_infer_mul_mat_id, reference=mul_mat_id_reference,
                samples=_experts, rowwise=(1, 2))  # fmt: skip
