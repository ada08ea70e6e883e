"""Models of which some layers have attention and others a memory: which are which, and their convolutions."""

from __future__ import annotations

from collections.abc import Mapping

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed, max_elements
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models._config import MAX_LAYERS, N_AHEAD, Heads, by_layer
from graphml_models._samples import HEAD_NORMS, SPLIT_QKV, Metadata, Shapes, transformer

INTERVAL, RECURRENT = "full_attention_interval", "attention.recurrent_layers"


def read_attending(keys: Keys, interval: int) -> tuple[bool, ...]:
    """Which layers have attention: those the file does not call recurrent, or else of so many the last."""
    n_layer = _n_layer(keys)
    if keys.has(RECURRENT):
        return tuple(not recurrent for recurrent in by_layer(keys, RECURRENT, n_layer))
    interval = keys.integer(INTERVAL, interval)
    if interval < 1:
        raise keys.unsupported(INTERVAL, "at least 1")
    return tuple((i + 1) % interval == 0 for i in range(n_layer))


def read_heads(keys: Keys) -> tuple[Heads, tuple[bool, ...]]:
    """Numbers of heads, and the layers that have any of keys, and thus attention."""
    key, n_layer = "attention.head_count_kv", _n_layer(keys)
    counts = by_layer(keys, key, n_layer)
    if len({count for count in counts if count}) > 1:
        raise keys.unsupported(key, "0 or one and the same number in each layer")
    heads = Heads(max(by_layer(keys, "attention.head_count", n_layer)), max(counts))
    return heads, tuple(map(bool, counts))


def _n_layer(keys: Keys) -> int:
    n_layer = keys.integer("block_count") - keys.integer(N_AHEAD, 0)
    return max(1, min(n_layer, MAX_LAYERS))  # the reader of all else refuses others


def convolution(g: Builder, layer: Layer, name: str, x_TC: Node, n_conv: int, what: str = "conv") -> Node:
    """The causal convolution of each channel over `n_conv` tokens by the tensor `name`, [T, C]."""
    weight, count = layer[name], fixed(x_TC.shape[1])
    if max_elements(weight.shape) != count * n_conv or weight.shape[-1] != n_conv:
        wanted = f"{count} channels of {n_conv}"
        raise ArchitectureError(f"tensor blk.{layer.index}.{name}.weight: wanted {wanted}; got {weight.type}")
    weight = g.dequantize(weight)
    if len(weight.shape) > 2:  # with dimensions of 1 between
        weight = g.reshape(weight, count, n_conv, keep=0)
    return g.ssm_conv(x_TC, weight, None, layer.index, what)


def hybrid(
    architecture: str,
    memory: Shapes,
    attention: Shapes = HEAD_NORMS,
    name: str = "plain",
    n_layer: int = 2,
    n_expert: int = 0,
    metadata: Metadata | None = None,
    layer: Mapping[str, tuple[int, ...]] | None = None,
    top: Mapping[str, tuple[int, ...]] | None = None,
    without: tuple[str, ...] = (),
) -> SampleModel:
    """A tiny model for tests: a layer with tensors of a memory, others with those of attention.

    The other arguments are as of `transformer`.
    """
    of_attention = (*SPLIT_QKV, *attention, "attn_output.weight")
    gone = tuple(f"blk.0.{tensor}" for tensor in of_attention if tensor not in memory)
    return transformer(
        architecture, name, n_layer=n_layer, n_expert=n_expert, metadata=metadata,
        layer={**attention, **(layer or {})},
        top={f"blk.0.{tensor}": shape for tensor, shape in memory.items()} | dict(top or {}),
        without=gone + without,
    )  # fmt: skip
