"""The samples of an op of one's own: on them its shape rule, its function and its claims agree.

Its claims are to work row by row and to be commutative: passes move and swap nodes by these facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphml.errors import GraphError
from graphml.ir.op import Array, Attributes, Op, Sample, Type
from graphml.ir.own_signature import OwnSignature
from graphml.ir.shape import Symbol, bounds
from graphml.ir.symbol_rules import check_symbols


def check_samples(op: Op, declared: OwnSignature) -> None:
    """Run the reference on every sample; a `GraphError` where the declaration contradicts itself."""
    generator = np.random.default_rng(0)
    said = {f"rowwise={declared.operands[i]!r}" for i in op.rowwise}
    said |= {"commutative=True"} if op.commutative else set()
    for number, sample in enumerate(op.samples()):
        try:
            attributes = _attributes(op, declared, sample)
            _check_types(sample.inputs)
            for kind in (*sample.inputs, op.infer(sample.inputs, attributes)):
                check_symbols(op, kind)
            if op.reference is not None:
                arrays = [_filled(sample, i, generator) for i in range(len(sample.inputs))]
                op.reference(arrays, attributes)
                said -= _checked_claims(op, declared, sample.inputs, arrays, attributes)
        except GraphError as error:
            if str(error).startswith(f"op {op.name!r}"):
                raise
            declared.fail(f"sample {number}: {error}")
    if said:
        declared.fail(
            f"{min(said)}: no sample checks it; wanted one whose operand and result have the same rows, of a "
            "symbol such as ROWS, or whose first two operands are of one type"
        )


def samples_of(declared: OwnSignature, samples: Any) -> list[Sample]:
    """The samples of a declaration; an error for anything but a list of what `sample` returns."""
    wanted = "what graphml.ops.sample returns"
    if not isinstance(samples, list | tuple):
        declared.fail(f"samples: wanted a list of {wanted}; got {samples!r:.100}")
    if not samples:
        declared.fail("samples: wanted at least one, to test it with")
    for number, sample in enumerate(samples):
        if not isinstance(sample, Sample):
            declared.fail(f"sample {number}: wanted {wanted}; got {sample!r:.100}")
        is_filled = isinstance(sample.fill, Mapping) and all(
            type(i) is int and 0 <= i < len(sample.inputs) and callable(make)
            for i, make in sample.fill.items()
        )
        if not is_filled:
            declared.fail(
                f"sample {number}: fill: wanted the number of an operand -> a function of a generator and a "
                f"shape; got {sample.fill!r:.100}"
            )
    return list(samples)


def _attributes(op: Op, declared: OwnSignature, sample: Sample) -> Attributes:
    unknown = [name for name in sample.attributes if name not in op.attributes]
    if unknown:
        raise GraphError(f"no attribute is called {unknown[0]!r}; it has {list(op.attributes)}")
    attributes = {**op.attributes, **sample.attributes}
    missing = [name for name, value in attributes.items() if value is None]
    if missing:
        raise GraphError(f"wanted a value for the attribute {missing[0]!r}")
    return declared.fitted({name: value for name, value in attributes.items() if value is not None})


def _check_types(inputs: Sequence[Any]) -> None:
    for kind in inputs:
        if not isinstance(kind, Type):
            raise GraphError(f"wanted types of operands, such as f32(ROWS, 64); got {kind!r:.100}")
        are_sizes = all(isinstance(size, int) and size > 0 for size in bounds(kind.shape))
        if not are_sizes:
            raise GraphError(f"wanted dimensions of at least 1; got {kind}")


def _checked_claims(
    op: Op, declared: OwnSignature, inputs: Sequence[Type], arrays: Sequence[Array], attributes: Attributes
) -> set[str]:
    """What an op says of itself and a sample confirms; a `GraphError` for what it contradicts."""
    checked: set[str] = set()
    rows = by_row(op, inputs, attributes)
    for i in rows:
        problem = not_by_row(op, rows, arrays, attributes)
        if problem:
            raise GraphError(f"rowwise={declared.operands[i]!r}: {problem}")
        checked.add(f"rowwise={declared.operands[i]!r}")
    if may_swap(op, inputs):
        problem = not_commutative(op, arrays, attributes)
        if problem:
            raise GraphError(f"commutative=True: {problem}")
        checked.add("commutative=True")
    return checked


def _filled(sample: Sample, i: int, generator: np.random.Generator) -> Array:
    kind, shape = sample.inputs[i], bounds(sample.inputs[i].shape)
    make = sample.fill.get(i)
    if make is None:
        is_whole = kind.dtype.numpy is not None and kind.dtype.numpy.kind == "i"
        values: Array = np.zeros(shape) if is_whole else generator.standard_normal(shape)
        return values.astype(kind.dtype.numpy or np.float32)
    try:
        array: Array = np.asarray(make(generator, shape), kind.dtype.numpy)
    except Exception as error:
        raise GraphError(f"fill of operand {i} raised {type(error).__name__}: {error}") from error
    if array.shape != shape:
        raise GraphError(f"fill of operand {i}: wanted an array of {list(shape)}; got {list(array.shape)}")
    return array


def by_row(op: Op, inputs: Sequence[Type], attributes: Attributes) -> list[int]:
    """The operands of these types whose rows make those of the op's result, one by one."""
    result_type = op.infer(inputs, attributes)
    if not result_type.shape or not isinstance(result_type.shape[0], Symbol):
        return []
    every = [i for i in op.rowwise if i < len(inputs) and inputs[i].shape]
    return [i for i in every if inputs[i].shape[0] == result_type.shape[0]]


def not_by_row(op: Op, rows: Sequence[int], arrays: Sequence[Array], attributes: Attributes) -> str:
    """How the last and the first row alone differ from those rows of all; "" where they do not.

    rows: see `by_row`. arrays: an operand each.
    """
    assert op.reference is not None
    whole = op.reference([array.copy() for array in arrays], attributes)
    chosen = [len(whole) - 1, 0] if len(whole) > 1 else [0]
    picked = [np.ascontiguousarray(a[chosen]) if i in rows else a for i, a in enumerate(arrays)]
    result = op.reference(picked, attributes)
    if result.shape[0] == len(chosen) and _close(result, whole[chosen]):
        return ""
    return f"rows {chosen} of its operands alone make other rows than they do among all {len(whole)}"


def may_swap(op: Op, inputs: Sequence[Type]) -> bool:
    """Whether an op says that two operands of these types may be swapped."""
    return op.commutative and len(inputs) > 1 and inputs[0] == inputs[1]


def not_commutative(op: Op, arrays: Sequence[Array], attributes: Attributes) -> str:
    """How the result changes with its first two operands swapped; "" where it does not."""
    assert op.reference is not None
    a, b, *rest = arrays
    first, second = (op.reference([*pair, *rest], attributes) for pair in ((a, b), (b, a)))
    pairs = zip(first, second, strict=True) if first.dtype == object else [(first, second)]
    if all(_close(x, y) for x, y in pairs):
        return ""
    return "its result is another with its first two operands swapped"


def _close(a: Array, b: Array) -> bool:
    """Sums may be in another order."""
    return np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
