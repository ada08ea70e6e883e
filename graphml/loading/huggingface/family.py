"""`Family`: how folders of one or several `model_type`s become metadata and tensors of an architecture.

A package of architectures has a package `huggingface` with one module per family, which defines `FAMILY`; a
file given with `--arch` may define it too. Knows the shape of the declaration; reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.packed_matrix import PackedMatrix
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor

Values = NDArray[np.float32]
Change = Callable[[HfConfig, str, Tensor], Tensor]
"""What a tensor becomes under its new name."""
Names = Mapping[str, "str | To | tuple[To, ...] | None"]


@dataclass(frozen=True)
class To:
    """Our name of a tensor, with `{}` for the layer, and what is done to it.

    behind: after how many other layers the first of these comes, of models with several stacks.
    by_rows: it is a part of the rows of one matrix, by the last number in its name, not one of the experts.
    count: how many experts there are; further ones are of pictures.
    """

    name: str
    change: Change
    behind: Callable[[HfConfig], int] | None = None
    by_rows: bool = False
    count: Callable[[HfConfig], int] | None = None

    def is_read(self, config: HfConfig, numbers: Sequence[int]) -> bool:
        """Whether a tensor with these numbers in its name is of the language model."""
        return self.count is None or len(numbers) < 2 or numbers[-1] < self.count(config)

    def place(self, config: HfConfig, numbers: Sequence[int]) -> str:
        """The name with the numbers of layer and expert that theirs has."""
        first = 0 if self.behind is None else self.behind(config)
        return self.name.format(*(number + first * (i == 0) for i, number in enumerate(numbers)))


@dataclass(frozen=True)
class Family:
    """The mapping of one family.

    model_types: of config.json. architecture: graphml's name, which begins the keys. keys: the metadata
    without that beginning, from the config; every field that it reads counts as understood, any other that
    the class of transformers reads is refused. names: transformers' names without their first part
    (`model.`, `transformer.`) and without `.weight` and `.bias`, with `{}` for the numbers of layer and
    expert -> ours, or several where a tensor is split; None: of no use to us.
    defaults: what the class assumes of fields that config.json lacks, where `class_fields.json` does not say
    it: of classes that transformers lacks, and of names that older versions wrote. ignored: fields that the
    class reads without influence on the results. logits: False for an encoder, which has no output matrix.
    numbers: our names of tensors of one element in each layer -> the whole key that has one for each layer.
    older: model_types that earlier versions wrote, with the fields of a larger model's language model among
    its own, or under another name -> the one of `model_types` that it is; others are of no use here.
    lists: our names of tensors of whole numbers, of one layer -> the key, without its beginning.
    claims: from the fields of a config of another model_type, or of none, of authors' own classes, to the one
    of `model_types` that it is; None: it is not of this family.
    whole: `model_types` are of classes whose config has that of their layers as `text_config`, which is not
    the config of a model of its own: its fields count beside theirs.
    """

    model_types: tuple[str, ...]
    architecture: str
    keys: Callable[[HfConfig], Mapping[str, Value]]
    names: Names
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    logits: bool = True
    numbers: Mapping[str, str] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    claims: Callable[[Mapping[str, Any]], str | None] | None = None
    whole: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The model_types that it is of, and what earlier versions wrote for them."""
        return *self.model_types, *(name for name, of in self.older.items() if of in self.model_types)


def permuted(
    tensor: Tensor, name: str, order: Callable[[int], NDArray[np.intp]], count: int | None = None
) -> Tensor:
    """The tensor's rows in another order, of any dtype; order: from the number of rows to their indices.

    count: of the rows that are left, if they are fewer.
    """
    rows = tensor.shape[0] if tensor.shape else 1

    def compute() -> NDArray[np.uint8]:
        return np.ascontiguousarray(tensor.data.reshape(rows, -1)[order(rows)]).reshape(-1)

    shape = tensor.shape if count is None else (count, *tensor.shape[1:])
    return DeferredTensor.of(name, tensor.dtype, shape, compute)


def calculated(
    tensor: Tensor, name: str, formula: Callable[[Values], Values], shape: tuple[int, ...] | None = None
) -> Tensor:
    """New numbers, float32, from those of the tensor; shape: of the result, if it is another."""

    def compute() -> NDArray[np.uint8]:
        values = np.ascontiguousarray(formula(tensor.numpy().astype(np.float32)), np.float32)
        return values.reshape(-1).view(np.uint8)

    return DeferredTensor.of(name, "f32", tensor.shape if shape is None else shape, compute)


def plus_one(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """1 + weight, as norms of Gemma have it."""
    return calculated(tensor, name, lambda values: np.float32(1) + values)


def unchanged(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The tensor as it is."""
    return tensor


def as_float32(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The same numbers, of routers: a product in less precision would choose other experts."""
    return calculated(tensor, name, lambda values: values)


def minus_exp(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """-exp(weight): the decay of state-space layers; of one number a head, a column."""
    shape = tensor.shape if len(tensor.shape) > 1 else (*tensor.shape, 1)
    return calculated(tensor, name, lambda values: -np.exp(values), shape)


def column(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """A vector as a matrix of one column."""
    return calculated(tensor, name, lambda values: values, (*tensor.shape, 1))


def squeezed(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Without dimensions of 1 in the middle, as convolutions by channel have: [C, 1, K] is [C, K]."""
    shape = (tensor.shape[0], *(extent for extent in tensor.shape[1:-1] if extent != 1), tensor.shape[-1])
    return calculated(tensor, name, lambda values: values, shape)


def flat(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """In one dimension."""
    return calculated(tensor, name, lambda values: values, (int(np.prod(tensor.shape)),))


def rows(part: Callable[[HfConfig], tuple[int, int, int, int]]) -> Change:
    """Rows of one kind, of matrices that hold several, and of their biases.

    part: groups, how many equal parts each group has, and from which to which of them is taken.
    """

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        groups, count, start, stop = part(config)
        total = tensor.shape[0] if tensor.shape else 1
        if groups < 1 or count < 1 or total % (groups * count) or not 0 <= start < stop <= count:
            raise config.error(f"{name}: {total} rows are no {groups} groups of {count} parts")
        chosen = np.arange(total).reshape(groups, count, -1)[:, start:stop].reshape(-1)

        def compute() -> NDArray[np.uint8]:
            return np.ascontiguousarray(tensor.data.reshape(total, -1)[chosen]).reshape(-1)

        return DeferredTensor.of(name, tensor.dtype, (len(chosen), *tensor.shape[1:]), compute)

    return change


def after(*changes: Change) -> Change:
    """One change after the other."""

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        for step in changes:
            tensor = step(config, name, tensor)
        return tensor

    return change


def transposed(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Rows and columns exchanged, as of GPT-2's matrices; a vector stays, and a packed matrix."""
    is_linear = isinstance(tensor, PackedMatrix)
    if len(tensor.shape) not in (2, 3) or is_linear or tensor.dtype not in ("f32", "f16", "bf16"):
        return tensor
    *experts, rows, columns = tensor.shape
    kind = np.uint32 if tensor.dtype == "f32" else np.uint16

    def compute() -> NDArray[np.uint8]:
        turned = np.swapaxes(tensor.data.view(kind).reshape(tensor.shape), -1, -2)
        return np.ascontiguousarray(turned).reshape(-1).view(np.uint8)

    return DeferredTensor.of(name, tensor.dtype, (*experts, columns, rows), compute)


def paired(
    heads: str = "", turning: Callable[[HfConfig, int], tuple[int, int]] | None = None, back: bool = False
) -> Change:
    """Rows of q or k for a rope of neighbours, where transformers rotates halves; back: the other way.

    heads: the key with the number of heads, one if empty; turning: from a head's width to the first of its
    dimensions that rotate and the one behind the last; None: all. Of these, i and i + half become neighbours.
    """

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        count = config.size(heads) if heads else 1

        def order(rows: int) -> NDArray[np.intp]:
            width = rows // max(count, 1)
            start, stop = (0, width) if turning is None else turning(config, width)
            if width * count != rows or not 0 <= start <= stop <= width or (stop - start) % 2:
                raise config.error(f"{name}: {rows} rows are no pairs in {count} heads")
            places: NDArray[np.intp] = np.arange(rows).reshape(count, width)
            half = (stop - start) // 2
            halves = places[:, start:stop].reshape(count, *((half, 2) if back else (2, half)))
            places[:, start:stop] = halves.swapaxes(1, 2).reshape(count, stop - start)
            return places.reshape(-1)

        return permuted(tensor, name, order)

    return change
