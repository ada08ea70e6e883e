"""Test cases of a backend: every op with its samples, in every format of its operands.

Cases are derived from the ops, so a new op is tested without further work. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from graphml.backend import Backend
from graphml.ir.builder import complete
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.dtype import F32, DType, dtype
from graphml.ir.fused import decomposition
from graphml.ir.language import Builder
from graphml.ir.op import Attribute, Op, Sample, Type
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.linear import quantize
from graphml.ir.own_op import OwnOp
from graphml.ir.shape import Dim, Symbol, bound
from graphml.passes.fusion import all_ops
from graphml.passes.pipeline import has_kernels
from graphml.weights.random_blocks import formats as weight_formats

WIDE = 512  # elements of a row of weights: two of the largest blocks
ROWS_OF_TABLE = 33
USUAL = "q8_0"  # the format of samples that are not tested with all formats
MIXED = "attention"  # the op that is tested with keys and values of two types
PRODUCTS = ("mul_mat", "mul_mat_id")
THROUGH = ("viewed", "permuted")  # how operands of ops of one's own reach them, besides as inputs
# Attributes with the dtype of a stored operand, and which operand that is.
SAID_BY = {"from_dtype": 0, "to_dtype": 0, "k_dtype": 1, "v_dtype": 2}


@dataclass(frozen=True)
class Case:
    """One way to call an op.

    number: of the sample among the op's. leaves: the kind of each operand, `input`, `weight` or `state`.
    format: of the weights or the cache (`q8_0/q4_0`: of keys and values); f32 if all are plain numbers.
    converted: the operand that is converted to `activation` before; -1: none. inplace: the operand that the
    result overwrites; -1: none. weight: for a result of a format, whose layout is the backend's own: the
    format of the weights that it is multiplied with. through: one of `THROUGH`: the operands are views or
    permuted; "": they are inputs of the graph.
    """

    op: Op
    number: int
    sample: Sample
    leaves: tuple[str, ...]
    format: str = "f32"
    activation: DType | None = None
    converted: int = -1
    inplace: int = -1
    weight: str = ""
    through: str = ""

    @cached_property
    def name(self) -> str:
        """`linear/2 q4_k`."""
        parts = [f"{self.op.name}/{self.number}", *([] if self.format == "f32" else [self.format])]
        how = ["in place"] if self.inplace >= 0 else []
        return " ".join([*parts, *how, *([f"of {self.through} operands"] if self.through else [])])

    @cached_property
    def call(self) -> str:
        """`linear(q4_k[33, 512], f32[T<=5, 512])`."""
        attributes = [f"{name}={value!r}" for name, value in self.sample.attributes.items()]
        return f"{self.op.name}({', '.join([*map(repr, self.sample.inputs), *attributes])})"

    def at(self, tokens: int) -> Case:
        """The same call in a step of at most so many tokens."""
        inputs = [_bounded(kind, tokens) for kind in self.sample.inputs]
        return replace(self, sample=_with(self.sample, inputs))

    @cached_property
    def symbols(self) -> Mapping[str, int]:
        """The symbols of its operands and their bounds."""
        return {d.name: d.bound for kind in self.sample.inputs for d in kind.shape if isinstance(d, Symbol)}

    @cached_property
    def results(self) -> tuple[Type, ...]:
        """The types of the op's results."""
        kind = self.op.infer(self.sample.inputs, complete(self.op, self.sample.attributes))
        return kind.parts or (kind,)


def cases(backend: Backend, chosen: Callable[[str], bool] = lambda name: True) -> list[Case]:
    """Every case for a backend, op by op. Fused ops without a kernel are left out, as in graphs.

    chosen: whether an op of a name is wanted; of others no case is made.
    """
    listed: list[Case] = []
    for name, op in sorted(all_ops().items()):
        if op not in LEAVES and (op.decompose is None or has_kernels(backend, op)) and chosen(name):
            for number, sample in enumerate(op.samples()):
                listed += _of_sample(op, number, sample, backend)
            listed += _of_formats(op, backend)
    return listed


def _of_sample(op: Op, number: int, sample: Sample, backend: Backend) -> Iterator[Case]:
    case = Case(op, number, sample, _leaves(op, sample))
    if any(kind.dtype.is_format for kind in case.results):
        yield from _conversions(case, backend)
        return
    yield case
    for i in op.inplace:
        if i < len(sample.inputs) and (sample.inputs[i],) == case.results and case.leaves[i] == "input":
            yield replace(case, inplace=i)
            break
    if isinstance(op, OwnOp):
        yield from (replace(case, through=through) for through in THROUGH)
    if not op.recurrent:
        yield from _of_caches(case)


def _of_caches(case: Case) -> Iterator[Case]:
    """The same call with states of every type; keys and values that differ in one sample of an op."""
    kept = [i for i, leaf in enumerate(case.leaves) if leaf == "state"]
    fit = [name for name in CACHE_DTYPES if all(_whole(case.sample.inputs[i], dtype(name)) for i in kept)]
    formats = [name for name in fit if kept and name != "f32"]
    if case.op.name == MIXED and case.number == 0:
        formats += [f"{keys}/{values}" for keys, values in zip(fit, (*fit[1:], fit[0]), strict=True)]
    for name in formats:
        yield replace(case, sample=_stored_as(case.op, case.sample, kept, name), format=name)


def _leaves(op: Op, sample: Sample) -> tuple[str, ...]:
    """The kinds of the operands in a model: caches are states, operands equal in every step are weights."""
    moving = [_moves(kind) for kind in sample.inputs]

    def leaf(i: int, kind: Type) -> str:
        cache = "k_dtype" in op.attributes and len(kind.shape) == 3 and not moving[i]
        if op.writes == i or cache:
            return "state"
        return "weight" if any(moving) and not moving[i] and kind.dtype is F32 else "input"

    return tuple(leaf(i, kind) for i, kind in enumerate(sample.inputs))


def _moves(kind: Type) -> bool:
    return any(isinstance(dim, Symbol) for dim in kind.shape)


def _whole(kind: Type, stored: DType) -> bool:
    return bound(kind.shape[-1]) % stored.block_elements == 0


def _stored_as(op: Op, sample: Sample, stored: Sequence[int], written: str) -> Sample:
    """The same sample with some operands of other dtypes: `q8_0` for all, `q8_0/q4_0` one after the other."""
    kinds, inputs = [dtype(name) for name in written.split("/")], list(sample.inputs)
    for order, i in enumerate(stored):
        inputs[i] = Type(kinds[min(order, len(kinds) - 1)], inputs[i].shape)
    said = {name: inputs[i].dtype.name for name, i in SAID_BY.items() if name in op.attributes}
    return _with(sample, inputs, said)


def resized(case: Case, sample: Sample) -> Case:
    """The same call with the shapes of another sample."""
    leaves = _leaves(case.op, sample)
    stored = [i for i, kind in enumerate(sample.inputs) if leaves[i] != "input" and len(kind.shape) > 1]
    return replace(case, sample=_stored_as(case.op, sample, stored, case.format), leaves=leaves)


def _conversions(case: Case, backend: Backend) -> Iterator[Case]:
    """Conversions of a value to each activation dtype that the backend pairs with some weights."""
    (result,) = (kind for kind in case.results if kind.dtype.is_format)
    partners: dict[DType | None, str] = {}
    for name in weight_formats():
        partners.setdefault(backend.activation(dtype(name)), name)
    for kind, name in partners.items():
        if kind is not None and kind.is_format and _whole(result, kind) and _whole(result, dtype(name)):
            sample = _with(case.sample, case.sample.inputs, {"dtype": kind.name})
            yield replace(case, sample=sample, format=kind.name, weight=name)


def _of_formats(op: Op, backend: Backend) -> Iterator[Case]:
    """The cases of an op that reads weights as the file stores them, with weights of every format."""
    if "from_dtype" in op.attributes:
        number, sample = _fullest(op, lambda candidate: len(candidate.inputs[0].shape) == 2)
        lead = sample.inputs[0].shape[:-1]
        table = tuple(ROWS_OF_TABLE if isinstance(dim, Symbol) else dim for dim in lead)
        for name in weight_formats():
            inputs = [Type(dtype(name), (*table, WIDE)), *sample.inputs[1:]]
            leaves = ("weight", *("input" for _ in inputs[1:]))
            if name != "f32":
                yield Case(op, number, _with(sample, inputs, {"from_dtype": name}), leaves, name)
    elif multiplies(op):
        fullest, _ = _fullest(op)
        for number, sample in enumerate(op.samples()):
            case = Case(op, number, sample, _leaves(op, sample))
            if not any(kind.dtype.is_format for kind in case.results):
                for name in weight_formats() if number == fullest else [USUAL]:
                    yield _with_weights(case, dtype(name), backend)


@cache
def multiplies(op: Op) -> bool:
    """Whether a fused op contains products of its operands with weights, which may have any format.

    A product of a value that it computes, as that of an adapter's second matrix, is one of float32.
    """
    if op.decompose is None:
        return False
    sample = op.samples()[0]
    plain = decomposition(op, sample.inputs, complete(op, sample.attributes))
    products = [node for node in plain.nodes if node.op.name in PRODUCTS]
    return bool(products) and all(product.inputs[1].op.family == "leaf" for product in products)


def _fullest(op: Op, fits: Callable[[Sample], bool] = lambda sample: True) -> tuple[int, Sample]:
    """The sample with most operands and dimensions, and its number."""
    chosen = [pair for pair in enumerate(op.samples()) if fits(pair[1])]
    return max(
        chosen, key=lambda pair: (len(pair[1].inputs), sum(len(kind.shape) for kind in pair[1].inputs))
    )


def _with_weights(case: Case, kind: DType, backend: Backend) -> Case:
    """The same case with matrices of a format, rows of its length and activations of the paired dtype."""
    inputs = list(case.sample.inputs)
    matrices = [
        i for i, value_type in enumerate(inputs) if case.leaves[i] == "weight" and len(value_type.shape) > 1
    ]
    length = inputs[matrices[0]].shape[-1]
    x = next(
        i for i, value_type in enumerate(inputs) if _moves(value_type) and value_type.shape[-1] == length
    )
    for i in (*matrices, x):
        inputs[i] = Type(kind if i in matrices else F32, (*inputs[i].shape[:-1], WIDE))
    activation = backend.activation(kind)
    sample = _with(case.sample, inputs)
    weighted = replace(case, sample=sample, format=kind.name)
    if activation is None:
        return weighted
    converted = replace(weighted, activation=activation, converted=x)
    return weighted if _refuses(backend, converted) else converted


def _refuses(backend: Backend, case: Case) -> bool:
    """Whether there is no kernel for the op with converted activations, so that they are left as they are."""
    g = Builder()
    operands = [g.input(f"{i}", kind.dtype, kind.shape) for i, kind in enumerate(case.sample.inputs)]
    assert case.activation is not None
    operands[case.converted] = g.call(quantize, operands[case.converted], dtype=case.activation.name)
    return backend.refuses(g.call(case.op, *operands, name=None, **case.sample.attributes)) is not None


def _with(
    sample: Sample, inputs: Sequence[Type], attributes: Mapping[str, Attribute] | None = None
) -> Sample:
    return Sample(tuple(inputs), {**sample.attributes, **(attributes or {})}, sample.fill)


def _bounded(kind: Type, tokens: int) -> Type:
    def dim(size: Dim) -> Dim:
        return Symbol(size.name, tokens) if isinstance(size, Symbol) and size.name == "T" else size

    return Type(kind.dtype, tuple(map(dim, kind.shape)))
