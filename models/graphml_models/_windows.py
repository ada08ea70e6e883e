"""Layers that see a window of the last tokens (Beltagy et al. 2020, arXiv:2004.05150) or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, Tensors
from graphml_models import _attention, _config
from graphml_models._attention import HeadNorm
from graphml_models._rope import Rope

SIZE, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
# Of folders alone: in architectures whose layers all see the whole text in llama.cpp, whatever a file says.
BY_LAYER = "attention.windows"


@dataclass(frozen=True)
class WindowConfig(_config.Config):
    """And windows of the layers, 0 where a layer sees all."""

    windows: tuple[int, ...]


@dataclass(frozen=True)
class FolderConfig(WindowConfig):
    """Of an architecture with windows in folders alone."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the metadata; of a GGUF file no layer has one."""
        config = _config.Config.read(keys)
        return cls(**vars(config), windows=_config.by_layer(keys, BY_LAYER, config.n_layer, 0))


@dataclass(frozen=True)
class Config(WindowConfig):
    """And the rope of layers with a window."""

    local_rope: Rope


def read_windows(
    keys: Keys, n_layer: int, period: int, all_first: bool = False, size: int | None = None
) -> tuple[int, ...]:
    """How many tokens each layer sees, 0 if all.

    The file's pattern is a yes or no for each layer, or a number, else it is `period`: of so many layers the
    last sees all, or the first where `all_first`; of 0 none does. size: where the file does not say it; it
    must if None.
    """
    size = keys.integer(SIZE, size)
    if size < 0:
        raise keys.unsupported(SIZE, "0 or more tokens")
    if keys.is_array(PATTERN):
        return tuple(size if windowed else 0 for windowed in _config.by_layer(keys, PATTERN, n_layer))
    period = keys.integer(PATTERN, period)
    global_index = 0 if all_first else period - 1
    return tuple(0 if period and i % period == global_index else size for i in range(n_layer))


def read_local_rope(keys: Keys, rope: Rope, base: float = 0.0, scaled: bool = True) -> Rope:
    """The rope of layers with a window: `rope` on a base of its own, unless `scaled` without its scaling.

    base: where the file says nothing; 0 stands for the base of `rope`.
    """
    base = keys.number("rope.freq_base_swa", base or rope.freq_base)
    return replace(rope, freq_base=base, scaled=scaled)


def rope_tables(g: Builder, weights: Tensors, rope: Rope, local: Rope) -> dict[bool, Node]:
    """The tables of layers without (False) and with (True) a window; one and the same if the ropes are."""
    table = rope.table(g, weights)
    return {False: table, True: table if local == rope else local.table(g, weights)}


def tables_by_layer(g: Builder, config: Config, weights: Tensors) -> Sequence[Node]:
    """Each layer's rope table, as `llama.build` takes them."""
    tables = rope_tables(g, weights, config.rope, config.local_rope)
    return [tables[window > 0] for window in config.windows]


def attention(
    g: Builder, config: WindowConfig, layer: Layer, table: Node, x_TD: Node, norm: HeadNorm | None = None
) -> Node:
    """Grouped-query attention over the layer's window, rotated in halves, [T, N * H]; norm: of q and k."""
    return _attention.attention(g, config, layer, table, x_TD, "neox", norm, config.windows[layer.index])
