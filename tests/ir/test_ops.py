"""Every op of the table: its shape rule against its reference, and what it says about itself."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.errors import GraphError
from graphml.ir.builder import complete
from graphml.ir.dtype import DType
from graphml.ir.op import Array, Op, Sample
from graphml.ir.ops import layout, linear, table
from graphml.ir.ops.constant import constant
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.own_samples import may_swap, not_commutative
from graphml.ir.shape import max_elements, resolve
from graphml.passes.fusion import all_ops
from tests.graphs import ALL, PLAIN, arrays_of, full_attributes, largest, sample_graph, sample_ids
from tests.looped import looped

# A result of several has no sample of its own: its operand is never a leaf. A constant has no operands.
OPS = [op for op in all_ops().values() if op not in LEAVES | {layout.part, constant}]
COMMUTATIVE = [(op, sample) for op, sample in PLAIN if may_swap(op, sample.inputs)]
every_plain_sample = looped(("op", "sample"), PLAIN, ids=sample_ids(PLAIN))
every_sample = looped(("op", "sample"), ALL, ids=sample_ids(ALL))
every_op = looped("op", OPS, ids=str)


def held_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the NumPy array that holds a value."""
    return shape if dtype.numpy else (*shape[:-1], dtype.bytes_for(shape[-1]))


def call(op: Op, sample: Sample, arrays: list[Array]) -> Array:
    assert op.reference is not None
    return op.reference(arrays, full_attributes(op, sample))


def test_the_table_holds_every_family() -> None:
    families = {op.family for op in table().values()}
    assert {"elementwise", "norm", "reduce", "linear", "attention", "position", "layout", "index"} <= families
    assert len(table()) > 30


@every_op
def test_has_samples_with_symbolic_rows(op: Op) -> None:
    samples = op.samples()
    assert samples
    assert any(largest(sample.inputs) for sample in samples), "no sample has a symbolic dimension"


@every_plain_sample
@looped("rows", [1, 2, 5])
def test_the_inferred_type_is_what_the_reference_gives(op: Op, sample: Sample, rows: int) -> None:
    dims = dict.fromkeys(largest(sample.inputs), rows)
    inferred = op.infer(sample.inputs, full_attributes(op, sample))
    made = call(op, sample, arrays_of(sample, dims))
    assert made.shape == held_shape(inferred.dtype, resolve(inferred.shape, dims))
    assert made.dtype == (inferred.dtype.numpy or np.dtype(np.uint8))
    assert made.flags.c_contiguous


@every_plain_sample
def test_the_reference_changes_only_what_the_op_writes(op: Op, sample: Sample) -> None:
    arrays = arrays_of(sample, largest(sample.inputs))
    before = [array.copy() for array in arrays]
    made = call(op, sample, arrays)
    for i, (array, old) in enumerate(zip(arrays, before, strict=True)):
        if op.writes == i:
            assert (made is array) is op.is_write
            assert not np.array_equal(array, old)
        else:
            np.testing.assert_array_equal(array, old)


@looped(("op", "sample"), COMMUTATIVE, ids=sample_ids(COMMUTATIVE))
def test_a_commutative_op_commutes(op: Op, sample: Sample) -> None:
    arrays = arrays_of(sample, largest(sample.inputs))
    assert not not_commutative(op, arrays, full_attributes(op, sample))


@every_op
def test_what_it_says_of_its_storage_is_plausible(op: Op) -> None:
    """In place: the output is as large as the operand it takes over, in some sample that has the operand."""
    for i in op.inplace:
        samples = [sample for sample in op.samples() if i < len(sample.inputs)]
        outputs = [op.infer(sample.inputs, full_attributes(op, sample)) for sample in samples]
        assert any(sample.inputs[i] == kind for sample, kind in zip(samples, outputs, strict=True))
    assert not (op.view and op.inplace), "a view has no storage to take over"
    for sample in op.samples():
        kind = op.infer(sample.inputs, full_attributes(op, sample))
        if op.view:
            assert max_elements(kind.shape) == max_elements(sample.inputs[0].shape)
            assert kind.dtype is sample.inputs[0].dtype
        if op.is_write:
            assert kind == sample.inputs[op.writes]


@every_plain_sample
def test_a_view_shares_memory_and_other_ops_do_not(op: Op, sample: Sample) -> None:
    arrays = arrays_of(sample, largest(sample.inputs))
    made = call(op, sample, arrays)
    if op.view:
        assert np.shares_memory(made, arrays[0])
    elif op.name != "dequantize":  # of f32 it is the same array
        assert not any(np.shares_memory(made, a) for i, a in enumerate(arrays) if i != op.writes)


@every_sample
def test_a_graph_of_it_is_well_formed(op: Op, sample: Sample) -> None:
    recipe = sample_graph(op, sample)
    results = list(recipe.graph.outputs.values())
    assert {node.inputs[0] if node.op is layout.part and op is not node.op else node for node in results} == {
        node for node in recipe.graph.nodes if node.op is op
    }


@every_op
def test_defaults_and_samples_name_known_attributes(op: Op) -> None:
    for sample in op.samples():
        assert set(sample.attributes) <= set(op.attributes)


def test_every_op_is_found_by_its_own_name() -> None:
    assert all(name == op.name for name, op in all_ops().items())


def test_infinite_activations_do_not_become_blocks() -> None:
    at = complete(linear.quantize, {"dtype": "q8_0"})
    assert linear.quantize.reference is not None
    with pytest.raises(GraphError, match=r"\[quantize\].*finite"):
        linear.quantize.reference([np.full((1, 32), np.inf, np.float32)], at)
