"""Metadata and tensors of a folder as llama.cpp reads them: types of values, keys of its own, other rows.

A folder's metadata has GGUF's names; some keys are graphml's own. Such a key is left out where llama.cpp does
what it says anyway, and refused elsewhere. Knows keys and tensors; nothing of vocabularies and files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.loading.huggingface.family import permuted
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.metadata import StoredValue, stored

RMS = "attention.layer_norm_rms_epsilon"
SIGNED = ("general.sampling.top_k", "general.sampling.penalty_last_n", "general.sampling.mirostat")
WIDE = ("ple.head_offsets", "ple.head_vocab_sizes", "ple.layer_multipliers")
"""Keys that llama.cpp reads as i32, and as u64, in place of u32."""
FLOATS = ("general.sampling.",)
SPARSE_LAYERS, SPARSE_SPREAD = 10, 1.6448533535003662
"""Of Gemma 3n: how many layers keep the largest activations alone, and how far above the mean these are."""


@dataclass(frozen=True)
class Model:
    """arch: its name in llama.cpp; value: of a key without that name, None for a missing one; tensors: all."""

    arch: str
    value: Callable[[str], Any]
    tensors: Mapping[str, Tensor]


Rule = Callable[[Any, Model], bool]


def _same_as(key: str) -> Rule:
    return lambda value, model: np.float32(value) == np.float32(model.value(key))


def _is(*allowed: Any) -> Rule:
    return lambda value, model: value in allowed


def _normalises(value: Any, model: Model) -> bool:
    return bool(value) is (model.arch != "qwen2moe")


def _no_window(value: Any, model: Model) -> bool:
    """Whether no layer has a window that is shorter than the longest text."""
    longest = model.value("context_length") or 0
    return all(size == 0 or size >= longest for size in (value if isinstance(value, list) else [value]))


def _sparse_as_usual(value: Any, model: Model) -> bool:
    wanted = [SPARSE_SPREAD if layer < SPARSE_LAYERS else 0.0 for layer in range(len(value))]
    return np.allclose(np.maximum(value, 0.0), wanted, rtol=1e-5)


def _any(value: Any, model: Model) -> bool:
    return True


OWN: Mapping[str, tuple[Rule, str]] = {
    "activation_sparsity_scale": (_sparse_as_usual, "the first 10 layers are sparse, at 0.95"),
    "altup.active_idx": (_is(0), "0"),
    "altup.num_inputs": (_is(4), "4"),
    "attention.latent_norm_rms_epsilon": (_same_as(RMS), f"that of {RMS} for all norms"),
    "attention.windows": (_no_window, "no window in this architecture"),
    "expert_groups_by_best": (_is(False), "groups of experts by their two best"),
    "expert_router_jitter": (lambda value, model: False, "the softmax of all experts, no sparse mixer"),
    "halves_parallel": (lambda value, model: bool(value) is (not _has(model, "ffn_norm")), "what tensors say"),
    "heads_normed": (lambda value, model: bool(value) is _has(model, "attn_q_norm"), "what tensors say"),
    "kda.unit_epsilon": (_same_as(RMS), f"that of {RMS} for all norms"),
    "lightning.layer_norm_rms_epsilon": (_same_as(RMS), f"that of {RMS} for all norms"),
    "rope.scaling.by_text": (_any, "factors by the context that is asked for"),
    "router.normalise": (_normalises, "weights of experts sum to 1 in all but qwen2moe, where they do not"),
    "ssm.dt_b_c_rms_epsilon": (_same_as(RMS), f"that of {RMS} for all norms"),
    "ssm.time_step_min": (_is(0.0), "no least time step"),
}
"""Keys that llama.cpp lacks -> whether it does what a value says, and what it does."""


def _has(model: Model, name: str) -> bool:
    return f"blk.0.{name}.weight" in model.tensors


def in_its_terms(file: ModelFile) -> tuple[dict[str, StoredValue], dict[str, Tensor]]:
    """The values but those of the vocabulary, and the tensors, of a folder that is open.

    UsageError with the key for what llama.cpp cannot be told.
    """
    metadata = file.metadata
    own = metadata.text("general.architecture")
    arch, tensors = own, dict(file.tensors)
    if own == "mistral":
        arch = "llama"
        _check_windows(file, metadata)
        tensors = _neighbours(metadata, tensors)
    model = Model(arch, lambda key: metadata[f"{own}.{key}"] if f"{own}.{key}" in metadata else None, tensors)
    values = {"general.architecture": stored(arch), "general.type": stored("model")}
    for key in metadata:
        short = key.removeprefix(f"{own}.")
        if key in values or key.startswith("tokenizer."):
            continue
        if short == key and not key.startswith("general."):
            raise UsageError(f"{file.path}: convert: {key}: is no key of {own}, which a GGUF file could have")
        if short in OWN:
            holds, does = OWN[short]
            if not holds(metadata[key], model):
                raise _refused(file, key, metadata[key], does)
            continue
        if own == "mistral" and short == "attention.sliding_window":
            continue
        values[key if short == key else f"{arch}.{short}"] = typed(short, metadata, key)
    return values, tensors


def _refused(file: ModelFile, key: str, value: Any, does: str) -> UsageError:
    return UsageError(
        f"{file.path}: convert: {key} = {str(value)[:60]} cannot be said to llama.cpp, which knows: {does}. "
        "--override-kv states another value, of another model"
    )


def _check_windows(file: ModelFile, metadata: Metadata) -> None:
    key = "mistral.attention.sliding_window"
    window, longest = metadata.integer(key, 0), metadata.integer("mistral.context_length")
    if 0 < window < longest:
        raise _refused(file, key, window, "no window in llama, as which it has Mistral")


def _neighbours(metadata: Metadata, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows of q and k in pairs of neighbours, which llama rotates, where Mistral's are in halves."""
    counts = {
        "attn_q": metadata.integer("mistral.attention.head_count"),
        "attn_k": metadata.integer("mistral.attention.head_count_kv"),
    }

    def order(count: int) -> Callable[[int], NDArray[np.intp]]:
        return lambda rows: np.arange(rows).reshape(count, 2, -1).swapaxes(1, 2).reshape(-1)

    changed = {}
    for name, tensor in tensors.items():
        part = name.split(".")[2] if name.startswith("blk.") else ""
        changed[name] = permuted(tensor, name, order(counts[part])) if part in counts else tensor
    return changed


def typed(short: str, metadata: Metadata, key: str) -> StoredValue:
    """A value in the type that llama.cpp reads it in."""
    kind, count, value = metadata.beginning(key, 0)
    if count is not None:
        value = metadata[key]
    if kind == "f64" or (key.startswith(FLOATS) and kind == "i64" and key not in SIGNED):
        return StoredValue("f32", count, lambda limit: value if limit is None or count is None else value[:limit])
    if kind == "i64":
        kind = "u64" if short in WIDE else "i32" if count is not None or short in SIGNED else "u32"
        least, most = {"u64": (0, 1 << 64), "i32": (-(1 << 31), 1 << 31), "u32": (0, 1 << 32)}[kind]
        for number in [value] if count is None else value:
            if not least <= number < most:
                raise UsageError(f"convert: {key} = {number}: wanted a number from {least} to {most - 1}")
    return StoredValue(kind, count, lambda limit: value if limit is None or count is None else value[:limit])
