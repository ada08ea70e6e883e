"""Tensors that packings make: matrices [out, in], and blocks with a factor that stands beside them.

Knows what a matrix is multiplied by; nothing of how it was packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml.weights.filemap import Bytes


class PackedMatrix(DeferredTensor):
    """A matrix [out, in], even of a class whose own matrices are [in, out], such as GPT-2's."""


class ScaledMatrix(PackedMatrix):
    """Blocks of a matrix that one factor multiplies, as a model file has it in a tensor `.scale`.

    `data` is the blocks alone, `numpy()` the values, `factor` a float32.
    """

    factor: np.float32
    _values: Callable[[], NDArray[np.float32]]

    @classmethod
    def scaled(
        cls,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        factor: np.float32,
        blocks: Callable[[], Bytes],
        values: Callable[[], NDArray[np.float32]],
    ) -> ScaledMatrix:
        """The matrix of a name; blocks: computes its bytes, values: its numbers, times the factor."""
        matrix = cls.of(name, dtype, shape, blocks)
        assert isinstance(matrix, ScaledMatrix)
        vars(matrix).update(factor=factor, _values=values)
        return matrix

    def numpy(self) -> NDArray[Any]:
        """The values, float32."""
        return self._values().reshape(self.shape)

    def as_floats(self) -> Tensor:
        """The same matrix in float32, for what takes no factor."""
        return PackedMatrix.of(self.name, "f32", self.shape, lambda: self.numpy().reshape(-1).view(np.uint8))


def factors(name: str, matrices: list[ScaledMatrix]) -> Tensor:
    """The tensor of the factors of one matrix, or of each expert's."""
    values = np.array([matrix.factor for matrix in matrices], np.float32)
    return Tensor(name, "f32", values.shape, values.view(np.uint8), mapped=False)
