"""What a packing declares: the `quant_method`s that it reads, and how a matrix comes of its parts.

Knows the shape of the declaration; reads no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.loading.huggingface.packings._parts import StoredParts
from graphml.weights import Tensor


@dataclass(frozen=True)
class Layout:
    """How the matrices of a checkpoint are stored.

    ends: what the names of a matrix's parts end in; "" is the part that has the matrix's own name. whole:
    what the matrix's name ends in, in place of those. dtypes: of a part "" that is packed even where it is
    the only one. unpack: the matrix of its parts, WeightsError where they do not fit.
    """

    ends: tuple[str, ...]
    unpack: Callable[[StoredParts], Tensor]
    whole: str = ""
    dtypes: frozenset[str] = frozenset()


class PackingFields:
    """The fields of a `quantization_config`; errors name the file and the field."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def error(self, text: str) -> WeightsError:
        """The error for something that is not understood."""
        return WeightsError(f"{self.path}: quantization_config: {text}")

    def get(self, *names: str) -> Any:
        """The first of these fields that is there and not null."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def text(self, *names: str, default: str = "") -> str:
        """A short text in lower case."""
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{names[0]}: wanted a text; got {str(value)[:60]!r}")
        return (value or default).lower()[:80]

    def whole(self, *names: str, default: int, allowed: tuple[int, ...] = ()) -> int:
        """A whole number, one of these if there are any, else from 1 up."""
        value = self.get(*names)
        value = default if value is None else value
        if type(value) is not int or (value not in allowed if allowed else value < 1):
            wanted = ", ".join(map(str, allowed)) if allowed else "a number from 1 up"
            raise self.error(f"{names[0]}: wanted {wanted}; got {str(value)[:60]!r}")
        return value

    def group_size(self, *names: str, default: int = 128) -> int:
        """The inputs that share a scale; 0 for all of a row, which files write as -1."""
        value = self.get(*names)
        if value == -1 and type(value) is int:
            return 0
        return self.whole(*names, default=default)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"{name}: wanted true or false; got {str(value)[:60]!r}")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """An object; an empty one where the field is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"{name}: wanted an object; got {str(value)[:60]!r}")
        return value or {}

    def none_of(self, name: str, why: str) -> None:
        """Refuse a field that is there and neither empty nor false."""
        if self.get(name):
            raise self.error(f"{name}: {why}; got {str(self.get(name))[:60]!r}")


@dataclass(frozen=True)
class Packing:
    """A packing: its names in `quant_method`, and the layout that a config describes.

    read raises WeightsError for fields that it does not understand.
    """

    methods: tuple[str, ...]
    read: Callable[[PackingFields], Layout]
