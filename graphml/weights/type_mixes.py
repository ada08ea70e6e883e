"""Formats of the tensors of a file: llama-quantize's mixtures for each file type.

The rules are those of llama.cpp's `src/llama-quant.cpp`. Knows names and numbers only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import graphml_quant

from graphml.errors import UsageError


@dataclass(frozen=True)
class FileType:
    """A file type of llama.cpp: its number in `general.file_type`, and the format of most tensors.

    pure: every matrix has that format; for file types without a name in llama-quantize.
    """

    name: str
    number: int
    format: str
    pure: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model for the rules. n_gqa: query heads per key-value head; tied: no output matrix.

    falcon: of that architecture. is_70b: a llama of 80 layers with grouped heads. imatrix: an importance
    matrix is there.
    """

    n_layer: int
    n_gqa: int
    n_expert: int
    tied: bool
    falcon: bool = False
    is_70b: bool = False
    imatrix: bool = False


_TYPES = {
    "F32": (0, "f32"), "F16": (1, "f16"), "BF16": (32, "bf16"), "Q4_0": (2, "q4_0"), "Q4_1": (3, "q4_1"),
    "Q5_0": (8, "q5_0"), "Q5_1": (9, "q5_1"), "Q8_0": (7, "q8_0"), "Q2_K": (10, "q2_k"),
    "Q2_K_S": (21, "q2_k"), "Q3_K_S": (11, "q3_k"), "Q3_K_M": (12, "q3_k"), "Q3_K_L": (13, "q3_k"),
    "Q4_K_S": (14, "q4_k"), "Q4_K_M": (15, "q4_k"), "Q5_K_S": (16, "q5_k"), "Q5_K_M": (17, "q5_k"),
    "Q6_K": (18, "q6_k"), "IQ2_XXS": (19, "iq2_xxs"), "IQ2_XS": (20, "iq2_xs"), "IQ2_S": (28, "iq2_xs"),
    "IQ2_M": (29, "iq2_s"), "IQ3_XS": (22, "iq3_s"), "IQ3_XXS": (23, "iq3_xxs"), "IQ3_S": (26, "iq3_s"),
    "IQ3_M": (27, "iq3_s"), "IQ1_S": (24, "iq1_s"), "IQ1_M": (31, "iq1_m"), "IQ4_NL": (25, "iq4_nl"),
    "IQ4_XS": (30, "iq4_xs"), "TQ1_0": (36, "tq1_0"), "TQ2_0": (37, "tq2_0"), "MXFP4_MOE": (38, "mxfp4"),
    "Q1_0": (40, "q1_0"), "Q2_0": (41, "q2_0"),
}  # fmt: skip
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_PURE = {"MXFP4": (38, "mxfp4"), "NVFP4": (39, "nvfp4")}
FILE_TYPES: Mapping[str, FileType] = {
    **{name: FileType(name, *rest) for name, rest in _TYPES.items()},
    **{name: FileType(name, *rest, pure=True) for name, rest in _PURE.items()},
}
_UNQUANTISED = ("f32", "f16", "bf16")
_TINY = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")  # mixtures with rules of their own
# Format -> replacement for rows that are no whole number of blocks.
FALLBACK = {
    "iq1_s": "iq4_nl", "iq1_m": "iq4_nl", "iq2_xxs": "iq4_nl", "iq2_xs": "iq4_nl", "iq2_s": "iq4_nl",
    "iq3_xxs": "iq4_nl", "iq3_s": "iq4_nl", "iq4_xs": "iq4_nl", "q2_0": "q4_0", "q2_k": "q4_0",
    "q3_k": "q4_0", "tq1_0": "q4_0", "tq2_0": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip
KEPT = (
    "_norm.weight", "ffn_gate_inp", "altup", "laurel", "per_layer_model_proj", "position_embd", "token_types",
    "ffn_gate_tid2eid", "indexer.k_proj", "indexer.q_proj",
    "ssm_conv1d", "shortconv.conv", "time_mix_first", "time_mix_w0", "time_mix_w1", "time_mix_w2",
    "time_mix_v0", "time_mix_v1", "time_mix_v2", "time_mix_a0", "time_mix_a1", "time_mix_a2", "time_mix_g1",
    "time_mix_g2", "time_mix_decay_w1", "time_mix_decay_w2", "time_mix_lerp_fused", "attn_rel_b",
)  # fmt: skip
"""Parts of the names of matrices that llama-quantize leaves as they are."""
_MORE_OUTPUT = (
    "Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS",
)  # fmt: skip


def file_type(name: str, argument: str = "--type") -> FileType:
    """The file type of a name as llama-quantize spells it, in any case; UsageError for another.

    argument: what has the name, for the error.
    """
    kind = FILE_TYPES.get(_ALIASES.get(name.upper(), name.upper()))
    if kind is None:
        raise UsageError(f"{argument}: wanted one of {', '.join([*FILE_TYPES, *_ALIASES])}; got {name!r}")
    return kind


def is_kept(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is not quantised, whatever the file type: vectors, norms, routers, small matrices."""
    is_vector = all(size == 1 for size in shape[:-1])
    return is_vector or not name.endswith("weight") or any(part in name for part in KEPT)


def tensor_format(kind: FileType, name: str, shape: tuple[int, ...], facts: ModelFacts) -> str:
    """The format of a tensor, by its name in `graphml_quant`. shape: NumPy order, the row last."""
    return fitting(wanted_format(kind, name, shape, facts), shape[-1])


def wanted_format(kind: FileType, name: str, shape: tuple[int, ...], facts: ModelFacts) -> str:
    """As `tensor_format`, before a row that is no whole number of blocks gets what takes its place."""
    if is_kept(name, shape):
        return "f32"
    if kind.pure or kind.format in _UNQUANTISED:
        return kind.format
    return _chosen(kind, name, shape, facts)


def fitting(format: str, columns: int) -> str:
    """The format, or what takes its place for rows that are no whole number of its blocks."""
    for _ in range(2):
        if columns % graphml_quant.by_name(format).block_elements == 0:
            return format
        format = FALLBACK.get(format, "f16")
    return "f16"


def _chosen(kind: FileType, name: str, shape: tuple[int, ...], facts: ModelFacts) -> str:
    if name == "output.weight" or (name == "token_embd.weight" and facts.tied):
        return _output(kind, shape, facts)
    if kind.name == "MXFP4_MOE":
        return "mxfp4" if len(shape) > 2 else "q8_0"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return _embedding(kind)
    match = re.match(r"blk\.(\d+)\.(\w+)\.weight$", name)
    if match is None:
        return kind.format
    layer, part = int(match[1]), match[2].removesuffix("_exps")
    if kind.name in _TINY:
        return _tiny(kind, part, layer, facts)
    rule = _RULES.get(part)
    return kind.format if rule is None else rule(kind, layer, facts)


def _output(kind: FileType, shape: tuple[int, ...], facts: ModelFacts) -> str:
    odd = shape[-1] % graphml_quant.by_name(kind.format).block_elements
    if kind.name == "MXFP4_MOE" or facts.falcon or odd:
        return "q8_0"
    if kind.name in (*_TINY, "IQ3_XXS"):
        return "q5_k"
    return "q8_0" if kind.format == "q8_0" else "q6_k"


def _embedding(kind: FileType) -> str:
    if kind.name in ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"):
        return "q2_k"
    if kind.name in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
        return "iq3_s"
    return "q4_k" if kind.name in ("TQ1_0", "TQ2_0", "Q2_0") else kind.format


def _tiny(kind: FileType, part: str, layer: int, facts: ModelFacts) -> str:
    better = "iq3_s" if kind.name in ("IQ2_S", "IQ2_M") else "q2_k"
    if part in ("attn_v", "attn_qkv"):
        return "q4_k" if facts.n_gqa >= 4 or facts.n_expert >= 4 else better
    if part == "attn_k" and facts.n_expert == 8:
        return "q4_k"
    if part == "ffn_down" and layer < facts.n_layer // 8:
        return better
    if part == "attn_output":
        if facts.n_expert == 8:
            return "q5_k"
        return {"IQ1_S": "iq2_xxs", "IQ1_M": "iq2_xxs", "IQ2_S": "iq3_s", "IQ2_M": "iq3_s"}.get(
            kind.name, kind.format
        )
    return kind.format


def _more_bits(layer: int, n_layer: int) -> bool:
    """Whether a layer is in the first or last eighth, or is every third between."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def _value(kind: FileType, layer: int, facts: ModelFacts) -> str:
    if facts.n_expert == 8:
        return "q8_0"
    chosen = _value_by_type(kind, layer, facts)
    return "q5_k" if facts.is_70b and chosen in ("q3_k", "q4_k") else chosen


def _value_by_type(kind: FileType, layer: int, facts: ModelFacts) -> str:
    wide = facts.n_gqa >= 4
    better = {
        "Q2_K": "q4_k" if wide else "q3_k",
        "Q2_K_S": "q4_k" if wide else kind.format,
        "IQ3_XXS": "q4_k" if wide else kind.format if facts.imatrix else "iq3_s",
        "IQ3_XS": "q4_k" if wide else kind.format,
        "IQ3_S": "q4_k" if wide else kind.format,
        "IQ3_M": "q4_k",
        "Q3_K_M": "q5_k" if layer < 2 else "q4_k",
        "Q3_K_L": "q5_k",
        "IQ4_NL": "q5_k" if wide else kind.format,
        "IQ4_XS": "q5_k" if wide else kind.format,
        "Q4_K_S": "q5_k" if layer < 4 else kind.format,
    }
    if kind.name in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, facts.n_layer):
        return "q6_k"
    return better.get(kind.name, kind.format)


def _key(kind: FileType, layer: int, facts: ModelFacts) -> str:
    return "q8_0" if facts.n_expert == 8 else _query(kind, layer, facts)


def _query(kind: FileType, layer: int, facts: ModelFacts) -> str:
    return {"IQ3_XS": "iq3_xxs", "IQ3_XXS": "iq2_s"}.get(kind.name, kind.format)


def _attention_output(kind: FileType, layer: int, facts: ModelFacts) -> str:
    if facts.falcon:
        return "q4_k" if kind.name == "Q3_K_L" else kind.format
    if facts.n_expert == 8:
        return "q5_k" if kind.name in _MORE_OUTPUT else kind.format
    better = {"Q2_K": "q3_k", "IQ3_XXS": "iq3_s", "Q3_K_M": "q4_k", "Q3_K_L": "q5_k", "IQ3_M": "q4_k"}
    return better.get(kind.name, kind.format)


def _down(kind: FileType, layer: int, facts: ModelFacts) -> str:
    n_layer = facts.n_layer
    first, more = layer < n_layer // 8, _more_bits(layer, n_layer)
    sixteenth = layer < n_layer // 16
    own, falcon, imatrix = kind.format, facts.falcon, facts.imatrix
    better = {
        "Q2_K": "q3_k",
        "Q2_K_S": "q4_k" if first else own,
        "IQ3_XXS": own if imatrix else "q4_k" if first else "q3_k",
        "Q3_K_M": "q5_k" if sixteenth else "q4_k" if not falcon or more else own,
        "Q3_K_L": "q4_k" if falcon else "q5_k",
        "IQ3_M": "q4_k" if first or (facts.n_expert == 8 and more) else own,
        "IQ4_NL": "q5_k" if first and not imatrix else own,
        "IQ4_XS": "q5_k" if first and not imatrix else own,
        "Q4_K_S": "q5_k" if first and not falcon else own,
        "Q4_K_M": "q6_k" if more else own,
        "Q5_K_M": "q6_k" if more else own,
        "Q4_0": "q4_1" if first and imatrix else own,
        "Q5_0": "q5_1" if first and imatrix else own,
    }
    if falcon and kind.name == "Q4_K_M":
        return "q6_k" if sixteenth else "q5_k" if more else own
    return better.get(kind.name, own)


def _gate(kind: FileType, layer: int, facts: ModelFacts) -> str:
    inner = facts.n_layer // 8 <= layer < 7 * facts.n_layer // 8
    return "iq3_xxs" if kind.name == "IQ3_XS" and inner else kind.format


_RULES: Mapping[str, Callable[[FileType, int, ModelFacts], str]] = {
    # In llama.cpp the rules of the values apply first to the fused matrix, and hide its own rules.
    "attn_v": _value, "attn_qkv": _value, "attn_k": _key, "attn_q": _query, "attn_output": _attention_output,
    "ffn_down": _down, "ffn_gate": _gate, "ffn_up": _gate,
}  # fmt: skip
