"""The tensors of a model file by name, in file order.

Knows names; nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeVar, overload

from graphml.errors import NameNotFoundError, did_you_mean
from graphml.other_attributes import NamesOthers
from graphml.weights.tensor import Tensor

SHOWN = 3
D = TypeVar("D")


class TensorTable(Mapping[str, Tensor], NamesOthers):
    """Name -> tensor; a name that is not there is a `NameNotFoundError`, which is a KeyError too."""

    _same: ClassVar = {"names": "keys"}
    _instead: ClassVar = {
        "()": "[name]",
        **dict.fromkeys(("tensors", "named_parameters", "state_dict", "parameters"), "items() or values()"),
    }

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            near = did_you_mean(name, self._tensors) if isinstance(name, str) else ""
            some = ", ".join(map(repr, list(self._tensors)[:SHOWN]))
            hint = near or (f" They are named as {some}" if some else "")
            raise NameNotFoundError(f"no tensor is called {name!r:.80}.{hint}") from None

    @overload
    def get(self, name: str) -> Tensor | None: ...
    @overload
    def get(self, name: str, default: D) -> Tensor | D: ...
    def get(self, name: str, default: D | None = None) -> Tensor | D | None:
        """The tensor, or what is asked for where there is none: models ask for many that they may lack."""
        return self._tensors.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __or__(self, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**other, **self}

    def __repr__(self) -> str:
        first = [*self.items()][:SHOWN]
        shown = [f"{name!r}: {tensor.dtype} {list(tensor.shape)}" for name, tensor in first]
        rest = ["..."] if len(self) > SHOWN else []
        return f"{len(self)} tensors {{{', '.join(shown + rest)}}}"
