"""compressed-tensors, as llm-compressor saves: FP8, whole numbers of up to 8 bits, NVFP4, MXFP4 and MXFP8.

Each of `config_groups` has a format and targets. A matrix P.weight is weight, or weight_packed with
weight_shape; with weight_scale by tensor, row, group of inputs or block, weight_zero_point, weight_g_idx and,
of NVFP4, weight_global_scale. Scales of activations are not here: see decision 117.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.packings._floats import (
    Steps,
    by_blocks,
    fp8,
    mxfp4_rows,
    nvfp4,
    scale_steps,
)
from graphml.loading.huggingface.packings._integers import WORD, bit_numbers, grouped, in_order
from graphml.loading.huggingface.packings._layout import Layout, Packing, PackingFields
from graphml.loading.huggingface.packings._parts import FP8, StoredParts
from graphml.loading.huggingface.packings._targets import Targets
from graphml.weights import Tensor

PACKED, SHAPE, SCALE, ZERO, ORDER, GLOBAL = (
    "_packed", "_shape", "_scale", "_zero_point", "_g_idx", "_global_scale",
)  # fmt: skip
PLAIN = ("float-quantized", "int-quantized", "naive-quantized")
FORMATS = (
    *PLAIN, "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
MIXED, DENSE = "mixed-precision", "dense"
ORDERED, NOT_ORDERED = ("group", "dynamic", "true"), ("weight", "static", "false", "none")
STORED = ("weight_input", "weight_output")  # where a rotation is part of what the file has
STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")


class Scheme(NamedTuple):
    """How the matrices of a group are stored; group and block: 0 where there are none."""

    format: str
    bits: int
    is_float: bool
    strategy: str
    group: int
    block: tuple[int, int]
    symmetric: bool
    ordered: bool

    def steps(self, shape: tuple[int, ...]) -> Steps:
        """The elements that share a scale, along each axis."""
        other = (1,) * (len(shape) - 2)
        whole = {"tensor": shape, "channel": (*other, 1, shape[-1]), "block": (*other, *self.block)}
        return whole.get(self.strategy) or (*other, 1, self.group)


def read(fields: PackingFields) -> Layout:
    """The layout of a config."""
    sparsity = fields.table("sparsity_config").get("format")
    if sparsity not in (None, DENSE):
        raise fields.error(f"sparsity_config.format: wanted {DENSE}; got {str(sparsity)[:60]!r}")
    _check_rotations(fields)
    stated = fields.text("format")
    if stated not in ("", DENSE, MIXED, *FORMATS):
        raise fields.error(f"format: wanted one of {', '.join(FORMATS)}; got {stated!r}")
    ignored = fields.get("ignore") or []
    targets: dict[str, Scheme] = {}
    for name, group in fields.table("config_groups").items():
        scheme = _scheme(fields, f"config_groups.{str(name)[:60]}", group, stated)
        listed = group.get("targets")
        if not _are_texts(listed):
            raise fields.error(
                f"config_groups.{str(name)[:60]}.targets: wanted a list of names; got {listed!r:.60}"
            )
        if scheme is not None:
            targets.update(dict.fromkeys(listed, scheme))
    if not _are_texts(ignored):
        raise fields.error(f"ignore: wanted a list of names; got {str(ignored)[:60]!r}")
    unpack = partial(_unpack, Targets(fields, targets, ignored), list(dict.fromkeys(targets.values())))
    ends = ("", PACKED, SHAPE, SCALE, ZERO, ORDER, GLOBAL)
    return Layout(ends, unpack, dtypes=frozenset((*FP8, "I8", "U8")))


def _check_rotations(fields: PackingFields) -> None:
    """Refuse rotations of activations; those of weights are in the stored weights already."""
    groups = PackingFields(fields.path, fields.table("transform_config")).table("config_groups")
    for name, group in groups.items():
        applied = group.get("apply") if isinstance(group, dict) else None
        places = [of.get("location") if isinstance(of, dict) else None for of in applied or [None]]
        if any(place not in STORED for place in places):
            raise fields.error(
                f"transform_config.config_groups.{str(name)[:60]}: rotations of activations are not read: "
                f"wanted a location of {' or '.join(STORED)}; got {str(places)[:60]}"
            )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _scheme(fields: PackingFields, name: str, group: Any, stated: str) -> Scheme | None:
    """What a group says of weights; None if they are not quantised."""
    if not isinstance(group, dict):
        raise fields.error(f"{name}: wanted an object; got {str(group)[:60]!r}")
    of = group.get("weights")
    kind = str(group.get("format") or stated)[:60]
    if of is None or kind == DENSE:
        return None
    if not isinstance(of, dict):
        raise fields.error(f"{name}.weights: wanted an object; got {str(of)[:60]!r}")
    if kind not in FORMATS:
        raise fields.error(f"{name}.format: wanted one of {', '.join(FORMATS)}; got {kind!r}")
    own = PackingFields(fields.path, of)
    strategy = own.text("strategy") or ("group" if own.get("group_size") not in (None, -1) else "tensor")
    if strategy not in STRATEGIES or own.text("type", default="int") not in ("int", "float"):
        raise fields.error(
            f"{name}.weights: wanted a strategy of {', '.join(STRATEGIES)} and a type int or float; got "
            f"{strategy!r}, {own.text('type')!r}"
        )
    block = own.get("block_structure")
    if isinstance(block, str):  # an older way to write it
        block = [int(size) for size in block.split("x") if size.isdecimal()]
    if strategy == "block" and not (
        isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
    ):
        raise fields.error(f"{name}.weights.block_structure: wanted two sizes; got {str(block)[:60]!r}")
    is_grouped = strategy in ("group", "tensor_group")
    return Scheme(
        kind,
        own.whole("num_bits", default=8, allowed=tuple(range(1, 9))),
        own.text("type", default="int") == "float",
        strategy,
        own.whole("group_size", default=0) if is_grouped else 0,
        (block[0], block[1]) if strategy == "block" else (0, 0),
        own.flag("symmetric", True),
        _is_ordered(fields, name, own.get("actorder")),
    )


def _is_ordered(fields: PackingFields, name: str, order: Any) -> bool:
    """Whether groups are of inputs in another order, which `g_idx` has."""
    stated = str(order).lower()
    if stated not in (*ORDERED, *NOT_ORDERED):
        raise fields.error(
            f"{name}.weights.actorder: wanted group, weight, true or false; got {stated[:60]!r}"
        )
    return stated in ORDERED


def _unpack(targets: Targets[Scheme], schemes: list[Scheme], parts: StoredParts) -> Tensor:
    module = parts.name.removesuffix(".weight")
    if targets.ignores(module):
        raise parts.error("is packed, but quantization_config has it in ignore")
    scheme = targets.of(module) or (schemes[0] if len(schemes) == 1 else None)
    if scheme is None:
        raise parts.error(f"is packed, but is in none of the {len(schemes)} config_groups")
    if scheme.symmetric and ZERO in parts and bool(parts.part(ZERO, (*FP8, "I8", "I32", "I64")).data.any()):
        raise parts.wrong(ZERO, "zeros of 0, as quantization_config has symmetric = true", "others")
    if scheme.format == "pack-quantized":
        return _packed(scheme, parts)
    if scheme.format == "nvfp4-pack-quantized":
        return nvfp4(parts, PACKED, SCALE, GLOBAL, inverse=True)
    if scheme.format == "mxfp4-pack-quantized":
        return mxfp4_rows(parts, PACKED, SCALE, ("U8",))
    if scheme.is_float:
        weight = parts.part("", ("F8_E4M3",), (None, None), (None, None, None))
        exponents = scheme.format == "mxfp8-quantized"
        scales = parts.scales(SCALE, **({"dtypes": ("U8", "F8_E8M0")} if exponents else {}))
        allowed = [scheme.steps(weight.shape)]
        return fp8(parts, weight, *scale_steps(parts, SCALE, scales, weight.shape, allowed))
    return _bytes(scheme, parts)


def _bytes(scheme: Scheme, parts: StoredParts) -> Tensor:
    """Whole numbers, each in a byte of its own."""
    rows, columns = parts.part("", ("I8",), (None, None)).shape

    def numbers() -> NDArray[np.int8]:
        return parts.whole_numbers("", ("I8",))

    zeros = None if scheme.symmetric else parts.whole_numbers(ZERO, ("I8", "I32", "I64"))
    return _with_groups(scheme, parts, (rows, columns), numbers, (-128, 127), zeros, 0)


def _packed(scheme: Scheme, parts: StoredParts) -> Tensor:
    """Whole numbers in words along inputs, and zeros in words along outputs."""
    sizes = parts.whole_numbers(SHAPE, ("I64", "I32"), (2,))
    n_out, n_in = map(int, sizes)
    if min(n_out, n_in) < 1:
        raise parts.wrong(SHAPE, "two sizes from 1 up", sizes.tolist())
    bits = scheme.bits
    dense, padded = _n_word(n_in, bits), -(-n_in // (WORD // bits))  # older versions left bits unused
    packed = parts.part(PACKED, ("I32",), (n_out, dense), (n_out, padded))
    straddles = packed.shape[1] == dense

    def numbers() -> NDArray[np.uint8]:
        return bit_numbers(parts.whole_numbers(PACKED, ("I32",)), bits, straddles)[:, :n_in]

    half = 1 << (bits - 1)
    zeros: NDArray[Any] | None = None
    if not scheme.symmetric and scheme.strategy not in ("group", "channel"):
        zeros = parts.whole_numbers(ZERO, ("I8",)) + np.int16(half)
    elif not scheme.symmetric:
        n_group = by_blocks((n_out, n_in), scheme.steps((n_out, n_in)))[1]
        n_word = _n_word(n_out, bits) if straddles else -(-n_out // (WORD // bits))
        words = parts.whole_numbers(ZERO, ("I32",), (n_word, n_group))
        zeros = bit_numbers(np.ascontiguousarray(words.T), bits, straddles)[:, :n_out].T
    return _with_groups(scheme, parts, (n_out, n_in), numbers, (0, 2 * half - 1), zeros, half)


def _n_word(count: int, bits: int) -> int:
    return -(-count * bits // WORD)


def _with_groups(
    scheme: Scheme,
    parts: StoredParts,
    shape: tuple[int, int],
    numbers: Any,
    extremes: tuple[int, int],
    zeros: NDArray[Any] | None,
    middle: int,
) -> Tensor:
    """The matrix of whole numbers; middle: the zero of all where there are none of their own."""
    steps = scheme.steps(shape)
    scales, _ = scale_steps(parts, SCALE, parts.scales(SCALE), shape, [steps])
    n_group = by_blocks(shape, steps)[1]
    if zeros is None:
        zeros = np.full((1, 1), middle, np.int16)
    elif zeros.size > 1 and zeros.size != scales.size:
        raise parts.wrong(ZERO, f"as many as there are scales, {list(scales.shape)}", list(zeros.shape))
    groups = np.arange(shape[1]) // steps[1]
    if scheme.ordered or ORDER in parts:
        stated = parts.whole_numbers(ORDER, ("I32", "I64"), (shape[1],))
        if not bool((stated == -1).all()):  # which is what stands there where the order is the plain one
            groups = in_order(parts, ORDER, shape[1], n_group)
    whole = (shape[0], n_group)
    return grouped(
        parts, numbers, extremes, _by_row(zeros, whole, steps), _by_row(scales, whole, steps), groups
    )


def _by_row(values: Any, whole: tuple[int, int], steps: Steps) -> Any:
    """Values for each row and group, of those for blocks of rows or for all."""
    values = values.reshape(-1, whole[1]) if values.size > 1 else values.reshape(1, 1)
    return np.ascontiguousarray(
        np.broadcast_to(np.repeat(values, min(steps[0], whole[0]), 0)[: whole[0]], whole)
    )


PACKING = Packing(("compressed-tensors",), read)
