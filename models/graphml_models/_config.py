"""What the metadata of nearly every decoder says, under the keys that all of them share.

An architecture that has more extends `Config`. Its `read` begins with these fields, changes those that are
special, and adds its own; one that is left out is a `TypeError` when a model is read:

    known = _config.read(keys)
    known = replace(known, scale=1.0)
    return cls(**vars(known), window=keys.integer("attention.sliding_window"))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose
from typing import NamedTuple, Self, TypeVar

from graphml.loading.architecture import Keys
from graphml_models._rope import Rope, read_rope

MAX_LAYERS = 1000  # more than any model has; tables by layer must not grow with a damaged number
N_AHEAD = "nextn_predict_layers"  # of the layers, the last: they guess further tokens and are left out
RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


class Heads(NamedTuple):
    """Numbers of heads: of queries, and of keys and values."""

    n_head: int
    n_head_kv: int


@dataclass(frozen=True)
class Config:
    """Sizes, epsilon of the norms, factor of the scores, rope; experts used per token, 0 if dense."""

    n_ctx: int
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    norm_eps: float
    scale: float
    rope: Rope
    n_expert_used: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        constants(keys, ())
        return cls(**vars(read(keys)))


C = TypeVar("C", bound=Config)


def read(
    keys: Keys,
    eps: str = RMS_EPS,
    heads: Heads | None = None,
    all_layers: bool = False,
    n_used: int | None = None,
) -> Config:
    """What nearly every decoder has; eps: the key of the kind of norm that the architecture has.

    heads: for an architecture whose layers have different numbers of them. all_layers: those are run, too,
    that predict further tokens. n_used: experts of a token, of an architecture that has them by layer.
    """
    n_ctx, n_embd = keys.integer("context_length"), keys.integer("embedding_length")
    n_head = heads.n_head if heads else keys.integer("attention.head_count")
    if not 1 <= n_head <= max(n_embd, 1):
        raise keys.unsupported("attention.head_count", f"1 to {n_embd} heads")
    head_dim = keys.integer("attention.key_length", n_embd // n_head)
    if head_dim < 1:
        raise keys.unsupported("attention.key_length", "at least 1")
    return Config(
        n_ctx=n_ctx,
        n_vocab=keys.n_vocab(),
        n_embd=n_embd,
        n_layer=read_n_layer(keys, all_layers),
        n_head=n_head,
        n_head_kv=heads.n_head_kv if heads else keys.integer("attention.head_count_kv", n_head),
        head_dim=head_dim,
        norm_eps=keys.number(eps),
        scale=keys.number("attention.scale", 0.0) or head_dim**-0.5,
        rope=read_rope(keys, head_dim, n_ctx),
        n_expert_used=keys.integer("expert_used_count", 0) if n_used is None else n_used,
    )


def with_heads(config: C, heads: Heads) -> C:
    """The configuration of a layer that has numbers of heads of its own."""
    return replace(config, n_head=heads.n_head, n_head_kv=heads.n_head_kv)


def read_n_layer(keys: Keys, every: bool = False) -> int:
    """How many layers are run: unless `every`, those that predict further tokens, the last, are left out."""
    n_layer, n_ahead = keys.integer("block_count"), 0 if every else keys.integer(N_AHEAD, 0)
    if not 1 <= n_layer <= MAX_LAYERS:
        raise keys.unsupported("block_count", f"1 to {MAX_LAYERS} layers")
    if not 0 <= n_ahead < n_layer:
        raise keys.unsupported(N_AHEAD, f"fewer than the {n_layer} layers")
    return n_layer - n_ahead


def read_heads(keys: Keys) -> tuple[Heads, ...]:
    """Numbers of heads for each layer."""
    n_layer = read_n_layer(keys)
    counts = [by_layer(keys, f"attention.head_count{kind}", n_layer) for kind in ("", "_kv")]
    return tuple(map(Heads, *counts))


def constants(keys: Keys, wanted: tuple[float, ...]) -> tuple[float, ...]:
    """The numbers in the text of an imported file; refused for weights of a module that has others."""
    listed = keys.length("constants")
    got = keys.numbers("constants", listed, 0.0) if listed else ()
    if len(got) != len(wanted) or any(
        not isclose(a, b, rel_tol=1e-6) for a, b in zip(got, wanted, strict=True)
    ):
        raise keys.unsupported("constants", f"{list(wanted)}, the numbers in the text of this architecture")
    return got


def by_layer(keys: Keys, key: str, n_layer: int, default: int | None = None) -> tuple[int, ...]:
    """An integer for each of the layers that are run; the file may have those of the layers behind them too.

    Or it has one for all of them.
    """
    length = n_layer if keys.length(key) in (None, n_layer) else keys.integer("block_count")
    return keys.integers(key, length, default)[:n_layer]
