"""llama.cpp's names of values, as its callbacks have them (`l_out-5`): what the graph calls the same value.

Knows names alone. Only names whose value is the same are here: llama.cpp's `k-0` is a view of its cache, not
`layers.0.k`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from graphml.errors import did_you_mean, similar

_CALLBACK = re.compile(r"(?P<value>[A-Za-z]\w*)-(?P<layer>\d+|\*)")  # attn_norm-0, or of every layer

OF_A_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "attn_norm": ("attn_norm",), "Vcur": ("v",), "Qcur_normed": ("q_norm",), "Kcur_normed": ("k_norm",),
    "kqv_out": ("attention",), "attn_out": ("attn_out",), "attn_post_norm": ("attn_post_norm",),
    "ffn_inp": ("attn_residual",), "sa_out": ("attn_residual",), "ffn_norm": ("ffn_norm",),
    "ffn_gate": ("gate",), "ffn_up": ("up",), "ffn_silu": ("silu",), "ffn_gelu": ("gelu",),
    "ffn_relu": ("relu",), "ffn_swiglu": ("swiglu",), "ffn_gate_par": ("swiglu",), "ffn_out": ("down",),
    "ffn_down": ("down",), "ffn_post_norm": ("ffn_post_norm",), "ffn_moe_logits": ("router",),
})  # fmt: skip
"""Value in llama.cpp -> names in the layer, of which the first that is there is meant."""

_TWICE: Mapping[str, tuple[str, str]] = MappingProxyType({"Qcur": ("q", "q_rope"), "Kcur": ("k", "k_rope")})
"""Values that llama.cpp names alike before and after rotary positions."""

LAYER_RESULTS = (
    "ffn_residual", "residual", "residual_1", "experts_residual", "embedding_residual", "layer_output_norm",
    "stack_norm", "output_scaled", "halved",
)  # fmt: skip
"""Names of what a layer returns, llama.cpp's `l_out`: the last of them in a layer is meant."""

_STREAMS = "corrected"
"""Of layers that return several values, as gemma3n's do: none of them is `l_out`."""

OUTSIDE: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "inp_embd": ("embedding",), "embd": ("embedding",), "inp_scaled": ("embedding_scaled",),
    "result_norm": ("output_norm",), "result_output": ("logits",),
})  # fmt: skip
"""The same of values of no layer."""

_INSIDE_ATTENTION = frozenset({"kq", "kq_scaled", "kq_masked", "kq_soft_max", "kq_soft_max_ext", "kqv"})
"""Values that one op of the graph computes within itself."""


def as_ours(name: str, names: Iterable[str]) -> list[str]:
    """The names of the graph that a name of llama.cpp's means: several where it has one for two values.

    A `*` in place of the layer means those of all layers. Empty where the graph has no such value.
    """
    known = dict.fromkeys(names)
    if name in OUTSIDE:
        return [ours for ours in OUTSIDE[name] if ours in known][:1]
    match = _CALLBACK.fullmatch(name)
    if match is None:
        return []
    value, layer = match["value"], match["layer"]
    if layer == "*":
        layers = dict.fromkeys(ours.split(".")[1] for ours in known if fnmatch.fnmatch(ours, "layers.*.*"))
        return [ours for number in layers for ours in as_ours(f"{value}-{number}", known)]
    if value == "l_out":
        wanted = {f"layers.{layer}.{ours}" for ours in LAYER_RESULTS}
        return [ours for ours in known if ours in wanted and f"layers.{layer}.{_STREAMS}" not in known][-1:]
    both = [f"layers.{layer}.{ours}" for ours in _TWICE.get(value, ())]
    of_layer = [f"layers.{layer}.{ours}" for ours in OF_A_LAYER.get(value, ())]
    return [ours for ours in both if ours in known] or [ours for ours in of_layer if ours in known][:1]


def spelt(name: str) -> str:
    """A name of llama.cpp's as the graph would spell it, whether the value is there or not; others stay."""
    match = _CALLBACK.fullmatch(name)
    if match is None:
        return name
    value = match["value"]
    ours = _TWICE.get(value) or (LAYER_RESULTS if value == "l_out" else OF_A_LAYER.get(value, (value,)))
    return f"layers.{match['layer']}.{ours[0]}"


def is_ambiguous(name: str) -> bool:
    """Whether llama.cpp gives two values this name."""
    match = _CALLBACK.fullmatch(name)
    return match is not None and match["value"] in _TWICE


def why_not(name: str, names: Collection[str]) -> str:
    """For an error: why the graph has no value of this name of llama.cpp's, and the nearest; else ""."""
    if as_ours(f"{name}-*", names):
        return f" It is a value of each layer: wanted '{name}-0', or '{name}-*' for those of all"
    match = _CALLBACK.fullmatch(name)
    if match is None:
        return ""
    value, layer = match["value"], match["layer"]
    if value in _INSIDE_ATTENTION:
        ours = f"layers.{layer}.attention"
        return f" {value} is computed within {ours!r}, whose result it is not" if _any(ours, names) else ""
    if not _any(f"layers.{layer}.*", names):
        return did_you_mean(spelt(name), names)
    prefix = f"layers.{layer}."
    inside = dict.fromkeys(ours.split(".", 2)[2] for ours in fnmatch.filter(names, f"{prefix}*"))
    near = did_you_mean(f"{prefix}{value}", [prefix + ours for ours in similar(value, inside)], 3)
    return near or f" Layer {layer} has {', '.join(repr(prefix + ours) for ours in inside)}"


def _any(pattern: str, names: Collection[str]) -> bool:
    return pattern in names or bool(fnmatch.filter(names, pattern))
