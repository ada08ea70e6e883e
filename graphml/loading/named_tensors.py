"""The tensors of a file as nodes, by name: the argument `weights` of an architecture's `build`.

Knows names, types and shapes of tensors; nothing of their values or of single architectures.
"""

from __future__ import annotations

import fnmatch
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence

from graphml.errors import ArchitectureError, similar
from graphml.ir.argument_kinds import Count
from graphml.ir.arguments import checked
from graphml.ir.dtype import F32, dtype
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import fixed
from graphml.weights import Tensor

method = checked("weights", operator.attrgetter("g"))


class Tensors:
    """The file's tensors as nodes, by GGUF name without `.weight`; records which were used.

    Matrices keep the file's dtype. Vectors (norms, biases, factors) are f32, dequantised if necessary, since
    they are combined with activations element by element.
    """

    def __init__(
        self, g: Builder, tensors: Mapping[str, Tensor], prefix: str = "", used: set[str] | None = None
    ):
        self.g = g
        self._tensors = tensors
        self._prefix = prefix
        self._used: set[str] = set() if used is None else used
        self.scales: Tensors | None = None  # the source of `.scale`s; None, not a cycle, for these themselves
        self._absent: list[str] = []  # tensors that were asked for
        self._left_out: dict[str, str] = {}  # tensor that the file has -> the pattern that leaves it out

    @method
    def get(self, *names: str) -> Node | None:
        """The first of the named tensors that the file has."""
        return self._get(*names)

    def _get(self, *names: str) -> Node | None:
        for name in names:
            full = self._prefix + name
            tensor = self._tensors.get(full)
            if tensor is None:
                full += ".weight"
                tensor = self._tensors.get(full)
            if tensor is not None:
                self._used.add(full)
                node = self.g.leaf(weight_leaf, full, _type_of(tensor.dtype, tensor.shape))
                is_plain = len(tensor.shape) != 1 or node.dtype is F32
                return node if is_plain else self.g.dequantize(node)
        self._absent += names
        return None

    @method
    def __getitem__(self, name: str) -> Node:
        """The tensor; an `ArchitectureError` says which is missing."""
        return self._want(name)

    def _want(self, name: str) -> Node:
        node = self._get(name)
        if node is not None:
            return node
        full = f"{self._prefix}{name}.weight"
        pattern = self._left_out.get(full, self._left_out.get(f"{self._prefix}{name}"))
        if pattern is not None:
            raise ArchitectureError(f"tensor {full} is left out by without({pattern!r})")
        absent = [other for other in dict.fromkeys(self._absent) if not other.endswith((".bias", ".scale"))]
        others = [f"{self._prefix}{other}.weight" for other in absent if other != name]
        nor = f", nor is {', '.join(others)}" if others else ""
        here = (
            []
            if others
            else [tensor_name for tensor_name in self._tensors if tensor_name.startswith(self._prefix)]
        )
        close = similar(full, here, 1)
        hint = f": did you mean {close[0]}?" if close else ""
        raise ArchitectureError(f"tensor {full} is wanted and not in the file{nor}{hint}")

    @method
    def linear(
        self,
        x: Node,
        name: str,
        out: str | None = None,
        scale_last: bool = False,
        scaled: bool = True,
        rows: Count | None = None,
    ) -> Node:
        """X times the tensor, times its `.scale`, plus its `.bias`, if the file has them.

        A matrix of one row may be a vector, since files drop dimensions of 1.
        scale_last: the scale multiplies the sum with the bias, like in llama.cpp's feed-forwards.
        scaled: see `scale`. rows: the number that the matrix must have, if it is known.
        """
        matrix = self._want(name)
        if len(matrix.shape) == 1:
            matrix = self.g.reshape(matrix, 1, fixed(matrix.shape[0]), keep=0)
        if rows is not None and matrix.shape[0] != rows:
            raise ArchitectureError(
                f"tensor {self._prefix}{name}.weight: wanted {rows} rows; got {self._want(name).type}"
            )
        factor, bias = self.scale(name, scaled), self._get(f"{name}.bias")
        if factor is None and bias is None:
            return self.g.mul_mat(matrix, x, name=out)
        extras = [(self.g.mul, factor), (self.g.add, bias)]
        todo = [(apply, node) for apply, node in extras if node is not None]
        y = self.g.mul_mat(matrix, x)
        for i, (apply, node) in enumerate(reversed(todo) if scale_last else todo, 1):
            y = apply(y, node, name=out if i == len(todo) else None)
        return y

    def scale(self, name: str, scaled: bool = True) -> Node | None:
        """The tensor's `.scale`, if the file has one.

        NVFP4 weights need it. For other formats llama.cpp applies it in some feed-forwards only: unless
        `scaled`, it is ignored.
        """
        of = self if self.scales is None else self.scales
        return of._get(f"{name}.scale") if scaled or self._want(name).dtype.name == "nvfp4" else None

    @method
    def logits(self, x: Node, name: str = "logits", of: str = "output") -> Node:
        """The output rows of x times the matrix `of`, else times the embedding; plus the bias of `of`."""
        self.g.every_hidden, self.g.hidden = x, output_rows(self.g, x)
        if self._get(of):
            return self.linear(self.g.hidden, of, name)
        bias = self._get(f"{of}.bias")
        if bias is None:
            return self.linear(self.g.hidden, "token_embd", name)
        return self.g.add(self.linear(self.g.hidden, "token_embd"), bias, name)

    @method
    def layers(
        self, blocks: int | Sequence[int], own_scales: bool = False, prefix: str = "blk"
    ) -> Iterator[Layer]:
        """The tensors of `blk.0`, `blk.1`, ...; nodes built in an iteration are named `layers.0. ...`.

        blocks: their number, or for each layer the number of its block, if layers share blocks. own_scales:
        each layer has the `.scale`s of its own number nevertheless. prefix: in place of `blk`.
        """
        numbers = range(blocks) if isinstance(blocks, int) else blocks
        for index, number in enumerate(numbers):
            with self.g.scope(f"layers.{index}"):
                last = index == len(numbers) - 1
                layer = Layer(self.g, self._tensors, f"{prefix}.{number}.", self._used, index, last)
                layer._left_out = self._left_out
                if own_scales:
                    layer.scales = Tensors(self.g, self._tensors, f"{prefix}.{index}.", self._used)
                yield layer

    @method
    def without(self, pattern: str) -> Tensors:
        """The tensors without those that match a pattern (`*.attn_output.bias`), which stay unused."""
        left_out = dict.fromkeys(fnmatch.filter(self._tensors, pattern), pattern)
        kept = {name: tensor for name, tensor in self._tensors.items() if name not in left_out}
        remaining = Tensors(self.g, kept, self._prefix, self._used)
        remaining._left_out = self._left_out | left_out
        return remaining

    def unused(self) -> list[str]:
        """Tensors of the file that the architecture did not use."""
        return sorted(set(self._tensors) - self._used)


@functools.lru_cache(maxsize=4096)
def _type_of(kind: str, shape: tuple[int, ...]) -> Type:
    """The type of a tensor; each is asked for by every graph of a model."""
    return Type(dtype(kind), shape)


def output_rows(g: Builder, x: Node) -> Node:
    """The output rows of x [T, ...], [O, ...]; x itself if it has no others."""
    return g.select_output_rows(x) if x.shape and x.shape[0] == g.n_tokens else x


class Layer(Tensors):
    """The tensors of one layer."""

    def __init__(
        self,
        g: Builder,
        tensors: Mapping[str, Tensor],
        prefix: str,
        used: set[str],
        index: int,
        is_last: bool,
    ) -> None:
        super().__init__(g, tensors, prefix, used)
        self.index = index
        self.is_last = is_last
