"""Architectures, and what they import: the reads of metadata (`Keys`) and the tensors by name (`Tensors`).

An architecture is a module with `Config` (a frozen dataclass with `read(keys)`), `build(g, config, weights)`
that returns the logits node, and `sample(name)`: tiny models, under that name, that the tests run it with.
`CAUSAL = False`: tokens attend to later ones too. `OUTPUT = "embeddings"`: `build` returns hidden rows,
because there are no logits. `RANK`: how pairs of texts are scored. `DIFFUSION`: answers are denoised, by
default in blocks of so many tokens; 0: the whole answer at once.

`encode(g, config, weights)`, if there is one, is the graph of an encoder: it reads a source text at once and
stores the keys and values that `build`, the decoder, attends to. Then `Config` has a `start_token`, which
begins answers.

`ahead(g, config, weights, hidden)`, if there is one, is the graph of a layer for multi-token prediction, in
files that have one behind the others: the logits of what follows `g.tokens`; `hidden`: the hidden rows of the
tokens before those.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from graphml.errors import ArchitectureError, GraphError, UsageError
from graphml.ir.builder import told_weights
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.source import callers
from graphml.loading.named_tensors import Layer, Tensors
from graphml.loading.rank import PLAIN, Rank
from graphml.weights import Metadata, Tensor

BY_LAYER = frozenset((
    "attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length",
    "expert_used_count",
))  # fmt: skip
"""Keys under which files of any architecture may have one value, or one for each layer."""

SMALLEST = 1e-30
"""The least number but 0 that a file may state: what is divided by less leaves float32."""


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
        """An integer; without a default the key must be there.

        Of `BY_LAYER` the file may have it once for each layer.
        """
        name = f"{self._prefix}.{key}"
        if key in BY_LAYER and self.is_array(key):
            values = set(self.metadata.integers(name, length=self.integer("block_count")))
            if len(values) != 1:
                raise self.unsupported(key, "the same number in every layer")
            return values.pop()
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
        value = self.metadata.number(name) if default is None else self.metadata.number(name, default)
        if 0 < abs(value) < SMALLEST:
            raise self.unsupported(key, f"0, or a number of at least {SMALLEST}")
        return value

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


__all__ = [
    "EMBEDDING", "MODELS_EMBEDDING", "OUTPUTS", "Architecture", "Config", "Keys", "Layer", "SampleModel",
    "Tensors", "blamed", "check_logits", "described",
]  # fmt: skip

OUTPUTS = ("logits", "embeddings")  # kinds of outputs; the first is the default
MODELS_EMBEDDING = "models_embd.weight"
"""The name by which a drafter has that of the model it drafts for, beside its own."""
EMBEDDING = "token_embd.weight"  # GGUF's name for the table with a row for each id, in every architecture


def described(error: Exception) -> str:
    """The error of an architecture's own code, with its line."""
    text = f"{type(error).__name__}: {error}"
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) or not frames:  # that names the line itself
        return text
    file, line = frames[-1]
    return text + (callers(reversed(frames)) or f" (at {file}:{line})")


@contextmanager
def blamed(path: Path, built_by: str) -> Iterator[None]:
    """Errors within the block name the model file, and the architecture if it is at fault."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except (ArchitectureError, GraphError) as error:
        raise ArchitectureError(f"{path}: {error}") from None
    except Exception as error:  # an architecture may be a third-party file
        raise ArchitectureError(f"{path}: {built_by}: {described(error)}") from error


def check_logits(logits: Node, tensors: Mapping[str, Tensor]) -> None:
    """Refuse logits of another number of ids than the embeddings: a sampled id is the next input."""
    embedding = tensors.get(EMBEDDING)
    if embedding is not None and logits.shape[-1] != embedding.shape[0]:
        raise ArchitectureError(
            f"wanted logits for the {embedding.shape[0]} rows of {EMBEDDING}; got {logits.type}"
            f" from {told_weights([logits])}"
        )


class Config(Protocol):
    """What every architecture's configuration has; the rest is its own."""

    @property
    def n_ctx(self) -> int:
        """The most tokens of a text."""
        ...

    @property
    def n_vocab(self) -> int:
        """The number of ids."""
        ...


@dataclass(frozen=True)
class SampleModel:
    """A tiny model for tests: its name, metadata (key -> value) and tensors (GGUF's name -> NumPy shape)."""

    name: str
    metadata: Mapping[str, int | float | str | list[int]]
    tensors: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Architecture:
    """A known architecture; see the module's docstring.

    causal: no token attends to later ones, so that a text may be evaluated in chunks. output: of
    `build`, `logits` or `embeddings`. rank: see `pooling`. encode: of a model with encoder and decoder;
    returns the rows [T, D] of the source text. ahead: of a layer for multi-token prediction. diffusion: the
    `DIFFUSION` of a diffusion model, None for all others. `build`, `ahead` and `encode` are given what `read`
    returned, which is of a class of their module: hence `Any`.
    """

    name: str
    read: Callable[[Keys], Config]
    build: Callable[[Builder, Any, Tensors], Node]
    sample: Callable[[str], Sequence[SampleModel]] | None = None
    causal: bool = True
    output: str = "logits"
    rank: Rank = PLAIN
    encode: Callable[[Builder, Any, Tensors], Node] | None = None
    ahead: Callable[[Builder, Any, Tensors, Node], Node] | None = None
    diffusion: int | None = None
