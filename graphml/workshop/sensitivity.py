"""How much each number of a model's matrices matters: the diagonal of its Fisher matrix, by PyTorch.

Texts are read by the model's module; behind each token one is sampled from what the model says, and the
gradients of these tokens' log-likelihood are squared. Half of that times squared errors of rounding, added up
over a matrix, is the KL divergence a token that they cost, as long as they are small (docs/decisions/0136).
Knows models and arrays; nothing of types or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphml.api.model import Model
from graphml.errors import UsageError
from graphml.torch_module import to_torch

LENGTH = 256
"""Tokens of a text."""
Floats = NDArray[np.float32]


@dataclass
class Sensitivity:
    """sums: name of a matrix -> float32 as its shape, squared gradients of n_texts texts added up."""

    length: int
    sums: dict[str, Floats] = field(default_factory=dict)
    n_texts: int = 0

    def kl(self, name: str, errors: Floats) -> float:
        """What errors of a matrix, of its shape, cost: nats a token."""
        sums = self.sums[name].ravel()
        return (
            float(np.einsum("i,i,i->", sums, errors.ravel(), errors.ravel(), dtype=np.float64)) / self._count
        )

    def columns(self, name: str) -> NDArray[np.float64]:
        """How much a column matters: the mean over a matrix's rows, [matrices, columns]."""
        sums = self.sums[name]
        matrices = sums.reshape(-1, *sums.shape[-2:])
        means: NDArray[np.float64] = matrices.mean(axis=1, dtype=np.float64)
        return means / self._count

    @property
    def _count(self) -> float:
        return 2.0 * self.length * self.n_texts


def memory(model: Model, names: Sequence[str]) -> int:
    """Bytes that measuring takes: weights, their gradients and the sums, in float32."""
    tensors = model.executor.file.tensors
    return 4 * (sum(tensor.n_elements for tensor in tensors.values()) + 2 * sum(
        tensors[name].n_elements for name in names
    ))  # fmt: skip


def sensitivity(
    model: Model,
    ids: Sequence[int],
    names: Sequence[str],
    n_texts: int = 32,
    seed: int = 0,
    length: int = LENGTH,
) -> Iterator[Sensitivity]:
    """Measure these matrices; gives what was seen after each text, the same object.

    ids: of a text, whose beginning is cut into texts of `length` tokens, evenly spread if there are more than
    n_texts. UsageError for a text of less than one of them, and without PyTorch.
    """
    n_ctx = model.n_ctx
    length = min(length, n_ctx)
    n_whole = len(ids) // length
    if n_whole < 1:
        raise UsageError(f"calibration: wanted a text of at least {length} tokens; got {len(ids)}")
    module = to_torch(model)
    import torch

    parameters = dict(module.named_parameters())
    wanted = {name: parameters[name] for name in names if name in parameters}
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in wanted)
    generator = torch.Generator().manual_seed(seed)
    seen = Sensitivity(
        length, {name: np.zeros(tuple(each.shape), np.float32) for name, each in wanted.items()}
    )
    starts = np.unique(np.linspace(0, n_whole - 1, min(n_texts, n_whole)).round().astype(int))
    for start in starts:
        text = torch.tensor(list(ids[start * length : (start + 1) * length]))
        logs = torch.log_softmax(module(text), -1)
        labels = torch.multinomial(logs.detach().exp(), 1, generator=generator)
        logs.gather(-1, labels).sum().backward()
        _add(seen, wanted)
        seen.n_texts += 1
        yield seen


def _add(seen: Sensitivity, wanted: Mapping[str, object]) -> None:
    """The squares of the gradients that are there; they are gone afterwards."""
    for name, parameter in wanted.items():
        gradient = parameter.grad  # type: ignore[attr-defined]
        if gradient is None:
            continue  # no token has reached it
        values = gradient.numpy()
        seen.sums[name] += values * values
        parameter.grad = None  # type: ignore[attr-defined]
