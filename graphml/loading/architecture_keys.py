"""Typed reads of an architecture's metadata keys.

Knows metadata and the architecture's prefix; nothing of tensors.
"""

from __future__ import annotations

from graphml.errors import ArchitectureError
from graphml.weights import Metadata


class Keys:
    """Typed reads of an architecture's metadata: `keys.integer("block_count")` reads `llama.block_count`."""

    def __init__(self, metadata: Metadata, prefix: str) -> None:
        self.metadata = metadata
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self.metadata.has(f"{self._prefix}.{key}")

    def is_array(self, key: str) -> bool:
        """Whether the file has the key, and several values under it."""
        return self.metadata.is_array(f"{self._prefix}.{key}")

    def length(self, key: str) -> int | None:
        """How many values the file has under the key; None if it has one alone, or no such key."""
        return self.metadata.describe(f"{self._prefix}.{key}").count if self.is_array(key) else None

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; without a default the key must be there."""
        name = f"{self._prefix}.{key}"
        return self.metadata.integer(name) if default is None else self.metadata.integer(name, default)

    def integers(self, key: str, length: int, default: int | None = None) -> tuple[int, ...]:
        """One integer for each of `length` layers; the file may have one for all of them, or truth values."""
        name = f"{self._prefix}.{key}"
        if default is not None and not self.metadata.has(name):
            return (default,) * length
        if self.metadata.has(name) and self.metadata.describe(name).type == "bool":
            return tuple(map(int, self.metadata.booleans(name, length=length)))
        return tuple(self.metadata.integers(name, length=length))

    def numbers(self, key: str, length: int, default: float) -> tuple[float, ...]:
        """One floating-point number for each of `length` layers; the file may have one for all of them."""
        name = f"{self._prefix}.{key}"
        return tuple(self.metadata.numbers(name, [default] * length, length=length))

    def number(self, key: str, default: float | None = None) -> float:
        """A floating-point number; without a default the key must be there."""
        name = f"{self._prefix}.{key}"
        return self.metadata.number(name) if default is None else self.metadata.number(name, default)

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self.metadata.text(f"{self._prefix}.{key}", default)

    def boolean(self, key: str, default: bool) -> bool:
        """A truth value."""
        return self.metadata.boolean(f"{self._prefix}.{key}", default)

    def unsupported(self, key: str, wanted: str) -> ArchitectureError:
        """The error for an unsupported value; it names file, key, wanted and found."""
        name = f"{self._prefix}.{key}"
        got = repr(self.metadata[name]) if self.metadata.has(name) else "nothing"
        return ArchitectureError(f"{self.metadata.path}: key {name}: wanted {wanted}; got {got}")

    def n_vocab(self) -> int:
        """`vocab_size`, else the length of the token list."""
        if self.has("vocab_size"):
            return self.integer("vocab_size")
        return self.metadata.describe("tokenizer.ggml.tokens").count or 0
