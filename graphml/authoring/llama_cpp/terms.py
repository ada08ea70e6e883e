"""Metadata of a folder as llama.cpp reads it: types of values, keys that follow, keys that it does not read.

A folder's metadata has GGUF's names. A key that llama.cpp's architecture does not read, one of graphml's own
among them, must say what llama.cpp does anyway; else it is refused. Knows keys; nothing of vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphml.authoring.llama_cpp import embedding_terms
from graphml.authoring.llama_cpp.fitted import architecture_names, fitted_tensors, neighbours, reads
from graphml.errors import UsageError
from graphml.loading.huggingface.folder import CONFIG, language_model
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.rope import OF_YARN, ROUNDED, YARN
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.gguf_writing import stored_values
from graphml.weights.metadata import StoredValue, stored

RMS, EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
WINDOW, LONGEST = "attention.sliding_window", "context_length"
PATTERN, HEADS_KV = "attention.sliding_window_pattern", "attention.head_count_kv"
FACTORS = "rope_freqs.weight"
INDEX_WIDTH = "attention.indexer.key_length"
SECTIONED = ("paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe", "qwen4exp")
"""Architectures that want the axes of positions; others turn pairs of others dimensions with them."""
SIGNED = ("general.sampling.top_k", "general.sampling.penalty_last_n", "general.sampling.mirostat")
WIDE = ("ple.head_offsets", "ple.head_vocab_sizes", "ple.layer_multipliers")
"""Keys that llama.cpp reads as i32, and as u64, in place of u32."""
FLOATS, BARE = ("general.sampling.",), ("xielu.",)
"""Beginnings of keys whose numbers are f32, and of keys without the architecture's name."""
BY_TENSORS = ("attention.head_count", "feed_forward_length", "leading_dense_block_count")
"""Keys that have another value where the folder's is none that llama.cpp reads, or not that of tensors."""
UNSAID = ("dots3note", "qwen4exp")
"""Architectures of which llama.cpp wants keys that the folder does not have."""
SPARSE_LAYERS, SPARSE_SPREAD = 10, 1.6448533535003662
"""Of Gemma 3n: how many layers keep the largest activations alone, and how far above the mean these are."""
LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""The layers of models whose scores are scaled by another width."""


@dataclass(frozen=True)
class SaidModel:
    """What its keys and tensors say. arch: its name in llama.cpp; value: of a key without it, or None."""

    arch: str
    value: Callable[[str], Any]
    tensors: Mapping[str, Tensor]

    def has(self, name: str) -> bool:
        """Whether the first layer has such a matrix."""
        return f"blk.0.{name}.weight" in self.tensors


Rule = Callable[[Any, SaidModel], bool]


def _same_as(key: str) -> Rule:
    def rule(value: Any, model: SaidModel) -> bool:
        other = model.value(key)
        return other is not None and bool(np.float32(value) == np.float32(other))

    return rule


def _is(*allowed: Any) -> Rule:
    return lambda value, model: value in allowed


def _no_window(value: Any, model: SaidModel) -> bool:
    """Whether no layer has a window that is shorter than the longest text."""
    sizes = value if isinstance(value, list) else [value]
    return all(size == 0 or size >= (model.value(LONGEST) or 0) for size in sizes)


def _window_of_exaone(value: Any, model: SaidModel) -> bool:
    return int(model.value("block_count")) == 64 or _no_window(value, model)


def _full_first(value: Any, model: SaidModel) -> bool:
    widths = model.value("rope.dimension_count"), model.value("rope.dimension_count_swa")
    return not value[0] or widths[1] in (None, widths[0])


def _sparse_as_usual(value: Any, model: SaidModel) -> bool:
    wanted = [SPARSE_SPREAD if layer < SPARSE_LAYERS else 0.0 for layer in range(len(value))]
    return bool(np.allclose(np.maximum(value, 0.0), wanted, rtol=1e-5))


def _usual_scale(value: Any, model: SaidModel) -> bool:
    """Whether scores are scaled by the width of a head."""
    width = model.value("attention.key_length")
    if model.value("block_count") == LARGEST_GEMMAS.get(model.arch):
        width = model.value("embedding_length") // model.value("attention.head_count")
    return math.isclose(value, 1 / math.sqrt(int(width)), rel_tol=1e-6)


def _activation(value: Any, model: SaidModel) -> bool:
    return value in (("silu",) if model.arch == "bitnet" else ("gelu", "gelu_erf", "gelu_tanh"))


def _shared_layers(value: Any, model: SaidModel) -> bool:
    return int(model.value("block_count") - value) == 20


def _has_query_rank(value: Any, model: SaidModel) -> bool:
    known = value in (26, 27) or (value == 48 and model.value("vocab_size") == 128256)
    return known or model.value("attention.q_lora_rank") is not None


def _any(value: Any, model: SaidModel) -> bool:
    return True


ONE_EPS = (_same_as(RMS), f"that of {RMS} for all norms")
OWN: Mapping[str, tuple[Rule, str]] = {
    "activation_sparsity_scale": (_sparse_as_usual, "the first 10 layers are sparse, at 0.95"),
    "attention.latent_norm_rms_epsilon": ONE_EPS,
    "attention.windows": (_no_window, "no window in this architecture"),
    "expert_groups_by_best": (_is(False), "groups of experts by their two best"),
    "expert_router_jitter": (lambda value, model: False, "the softmax of all experts, no sparse mixer"),
    "halves_parallel": (lambda value, model: value is not model.has("ffn_norm"), "what tensors say"),
    "heads_normed": (lambda value, model: value is model.has("attn_q_norm"), "what tensors say"),
    "dense_2.activation": (_is("identity"), "dense layers without an activation"),
    "dense_3.activation": (_is("identity"), "dense layers without an activation"),
    "kda.unit_epsilon": ONE_EPS,
    "lightning.layer_norm_rms_epsilon": ONE_EPS,
    "position_padding_id": (_any, ""),  # no text has it
    ROUNDED: (_any, ""),  # by the tensor, see `_with_rounded_bounds`
    OF_YARN: (_any, ""),
    "rope.scaling.by_text": (_any, "factors by the context that is asked for"),
    "router.normalise": (
        lambda value, model: value is (model.arch != "qwen2moe"),
        "weights of experts sum to 1 in all but qwen2moe, where they do not",
    ),
    "ssm.dt_b_c_rms_epsilon": ONE_EPS,
    "ssm.time_step_min": (_is(0.0), "no least time step"),
    "token_type_by_id": (_is(False), "one kind for all tokens, those of a second text among them"),
}
"""Keys of graphml alone, which are left out -> whether llama.cpp does what a value says, and what it does."""
UNREAD: Mapping[str, tuple[Rule, str]] = {
    "altup.active_idx": (_is(0), "0"),
    "altup.num_inputs": (_is(4), "4"),
    "attention.scale": (_usual_scale, "1 / sqrt(width of a head)"),
    "attention.shared_kv_layers": (_shared_layers, "keys and values of their own in 20 layers"),
    "attention.temperature_length": (_is(8192), "8192"),
    "attention.temperature_scale": (lambda value, model: math.isclose(value, 0.1, rel_tol=1e-6), "0.1"),
    "embedding_length_per_layer_input": (_is(256), "256"),
    "expert_feed_forward_length": (_any, ""),
    "expert_gating_func": (_is(2), "a sigmoid"),
    "expert_shared_count": (_is(0, 1), "one shared expert"),
    "expert_weights_norm": (_is(True), "weights of experts that sum to 1"),
    "expert_weights_scale": (_is(0.0, 1.0), "weights of experts without a factor"),
    "final_logit_softcapping": (_is(30.0), "30"),
    "hidden_activation": (_activation, "GELU, and SiLU in bitnet"),
    "leading_dense_block_count": (_any, ""),  # tensors say it
    "rope.scaling.yarn_beta_fast": (_is(32.0), "32"),
    "rope.scaling.yarn_beta_slow": (_is(1.0), "1"),
    EPS: (_same_as(RMS), f"that of {RMS}"),
    RMS: (_any, ""),
    WINDOW: (_no_window, "no window in this architecture"),
    "vocab_size": (_any, ""),
}
"""Keys that some architectures of llama.cpp do not read -> as above; they are written, for graphml."""
AS_MANY = (
    lambda value, model: value == model.value("attention.head_count"),
    "as many heads of keys as of queries",
)
SIXTY_FOURS = (lambda value, model: value % 64 == 0, "multiples of 64")
READ_OTHERWISE: Mapping[tuple[str, str], tuple[Rule, str]] = {
    ("chameleon", "vocab_size"): (lambda value, model: value > 8196, "ids of pictures up to 8195"),
    ("command-r", "block_count"): (
        lambda value, model: model.has("attn_q_norm") is (value >= 64),
        "norms of heads from 64 layers on",
    ),
    ("deepseek2", "block_count"): (_has_query_rank, "queries of full rank with 26 and 27 layers alone"),
    ("deepseek2-ocr", HEADS_KV): AS_MANY,
    ("deepseek32", INDEX_WIDTH): SIXTY_FOURS,
    ("deepseek4", "attention.compress_ratios"): (
        lambda value, model: {*value} <= {0, 4, 128},
        "ratios of 0, 4 and 128",
    ),
    ("dots1", HEADS_KV): AS_MANY,
    ("exaone4", WINDOW): (_window_of_exaone, "no window in this architecture but with 64 layers"),
    ("gemma-embedding", "final_logit_softcapping"): (_any, ""),  # there are no logits
    ("gemma4", PATTERN): (lambda value, model: any(value), "windows in some layers"),
    ("glm-dsa", INDEX_WIDTH): SIXTY_FOURS,
    ("laguna", PATTERN): (_full_first, "parts of heads that turn as in the first layer"),
    ("llama4", WINDOW): (_is(0, 8192), "chunks of 8192"),
    ("olmo2", "rope.freq_base_swa"): (_same_as("rope.freq_base"), "one base of the rope for all layers"),
    ("olmoe", HEADS_KV): AS_MANY,
    ("phi3", WINDOW): (_no_window, "no window in this architecture"),
}
"""Architecture and key that it does not apply to all values -> as above."""


def in_its_terms(file: ModelFile) -> tuple[dict[str, StoredValue], dict[str, Tensor]]:
    """The values but those of the vocabulary, and the tensors, of a folder that is open.

    UsageError with the key or the tensor for what llama.cpp cannot be told.
    """
    own = file.metadata.text("general.architecture")
    arch = _name(file.metadata, own)
    if arch not in architecture_names():
        raise UsageError(f"{file.path}: convert: llama.cpp has no architecture {own!r}")
    if arch in UNSAID:
        raise UsageError(f"{file.path}: convert: llama.cpp's {arch} wants keys that no folder says")
    keys, _ = reads(arch)
    file = _with_rounded_bounds(file, own, arch)
    metadata = file.metadata
    tensors = neighbours(metadata, file.tensors) if own == "mistral" else dict(file.tensors)
    tensors = fitted_tensors(file.path, arch, tensors)
    model = SaidModel(arch, lambda key: metadata.get(f"{own}.{key}"), tensors)
    values = {"general.architecture": stored(arch), "general.type": stored("model")}
    for key in metadata:
        short = key.removeprefix(f"{own}.")
        if key in values or key.startswith("tokenizer."):
            continue
        if key.startswith(embedding_terms.SENTENCES):
            embedding_terms.check_sentences(file, key)
        elif short == key and not key.startswith(("general.", *BARE)):
            raise UsageError(f"{file.path}: convert: {key}: is no key of {own}, which a GGUF file could have")
        if short != key and not _holds(file, model, key, short, short in keys):
            continue
        values[key if short == key else f"{arch}.{short}"] = typed(short, metadata, key)
    values |= _following(file, model, keys, values) | embedding_terms.added(file, arch, tensors)
    return values, tensors


def _name(metadata: Metadata, own: str) -> str:
    """What llama.cpp calls an architecture."""
    if own == "gemma3" and not metadata.boolean("gemma3.attention.causal", True):
        return "gemma-embedding"
    return "llama" if own == "mistral" else own


def _with_rounded_bounds(file: ModelFile, own: str, arch: str) -> ModelFile:
    """The file, whose yarn has rounded bounds where an override says so.

    UsageError for exact ones, where llama.cpp's architecture reads no factors of frequencies.
    """
    key = f"{own}.{ROUNDED}"
    if not file.metadata.has(key):
        return file
    if not file.metadata.boolean(key):
        if FACTORS in file.tensors and FACTORS not in reads(arch)[1]:
            raise UsageError(
                f"{file.path}: convert: {key} = False, truncate of config.json, cannot be said to "
                f"llama.cpp's {arch}, whose yarn has rounded bounds. --override-kv {key}=bool:true states "
                "another model, that of the files which run there"
            )
        return file
    numbers = dict(zip(YARN, file.metadata.numbers(f"{own}.{OF_YARN}"), strict=True))
    values = {**stored_values(file.metadata), f"{own}.rope.scaling.type": stored("yarn")}
    for name, number in numbers.items():
        whole = name == "original_context_length"
        values[f"{own}.rope.scaling.{name}"] = stored(int(number) if whole else number)
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != FACTORS}
    return file.with_metadata(Metadata(file.path, values)).with_tensors(tensors)


def _holds(file: ModelFile, model: SaidModel, key: str, short: str, is_read: bool) -> bool:
    """Whether a key is written; UsageError for a value that llama.cpp would pass over."""
    rule = OWN.get(short) or READ_OTHERWISE.get((model.arch, short))
    if rule is None and not is_read:
        rule = UNREAD.get(short)
    if rule is None and not is_read:
        rule = (lambda value, model: False), "no such key in this architecture"
    value = file.metadata[key]
    if rule is not None and not rule[0](value, model):
        raise UsageError(
            f"{file.path}: convert: {key} = {str(value)[:60]} cannot be said to llama.cpp, which knows: "
            f"{rule[1]}. --override-kv states another value, of another model"
        )
    return short not in OWN and not (short == WINDOW and model.arch == "llama")


def _following(
    file: ModelFile, model: SaidModel, keys: frozenset[str], known: Mapping[str, StoredValue]
) -> dict[str, StoredValue]:
    """Keys that llama.cpp reads and graphml sees by the tensors, or does not need for texts."""
    n_layer, tensors = model.value("block_count"), model.tensors
    values = _sizes(model)
    experts = [layer for layer in range(n_layer) if f"blk.{layer}.ffn_gate_inp.weight" in tensors]
    if experts and "leading_dense_block_count" in keys:  # which a folder says by a list, too
        values["leading_dense_block_count"] = experts[0]
        if experts != [*range(experts[0], n_layer)] and "interleave_moe_layer_step" not in keys:
            raise UsageError(
                f"{file.path}: convert: layers {experts[:8]} have experts: llama.cpp's {model.arch} knows "
                "dense layers before all others alone"
            )
    elif f"{model.arch}.leading_dense_block_count" not in known:
        values["leading_dense_block_count"] = n_layer
    shared = values.get("expert_shared_feed_forward_length", 0)
    if (
        "expert_shared_feed_forward_length" not in keys
        and shared
        and shared % values["expert_feed_forward_length"]
    ):
        raise UsageError(
            f"{file.path}: convert: shared experts have a width of {shared}: llama.cpp's {model.arch} knows "
            f"multiples of {values['expert_feed_forward_length']}, that of the others"
        )
    if experts and f"{model.arch}.interleave_moe_layer_step" not in known:
        values["interleave_moe_layer_step"] = _step(model, experts)
    if model.arch in SECTIONED:
        values["rope.dimension_sections"] = _sections(file, model)
    heads = model.value("attention.head_count")
    if isinstance(heads, list) and heads[0] == 0:  # by which it knows the width of heads of all layers
        values["attention.head_count"] = max(heads)
        if {*heads} - {0, max(heads)}:
            raise UsageError(f"{file.path}: convert: heads {heads[:8]}: llama.cpp knows one number of them")
    widths = [_extent(tensors, f"blk.{layer}.ffn_down.weight", -1) for layer in range(n_layer)]
    stated = model.value("feed_forward_length")
    if type(stated) is int and {width for width in widths if width} - {stated}:
        different = len({width for width in widths if width}) > 1
        values["feed_forward_length"] = (
            [width or stated for width in widths] if different else max(width or 0 for width in widths)
        )
    epsilons = {}
    if model.arch == "nemotron_h":  # of a layer that predicts further tokens, which wants the key
        epsilons[f"{model.arch}.attention.layer_norm_epsilon"] = stored(model.value(RMS), "f32")
    return epsilons | {
        f"{model.arch}.{key}": stored(value, "i32" if isinstance(value, list) else "u32")
        for key, value in values.items()
        if key in keys and (f"{model.arch}.{key}" not in known or key in BY_TENSORS)
    }


def _extent(tensors: Mapping[str, Tensor], name: str, axis: int) -> int | None:
    return tensors[name].shape[axis] if name in tensors else None


def _sizes(model: SaidModel) -> dict[str, Any]:
    """Sizes that some tensor has."""

    def of(part: str, axis: int) -> int | None:
        shapes = (tensor.shape for name, tensor in model.tensors.items() if name.endswith(part))
        return next((shape[axis] for shape in shapes), None)

    width, shared = of(".ffn_down_exps.weight", -1), of(".ffn_down_shexp.weight", -1)
    sizes = {
        "attention.indexer.key_length": of(".indexer.k_norm.weight", 0),
        "expert_feed_forward_length": width or model.value("feed_forward_length"),
        "expert_shared_count": max(shared // width, 1) if width and shared else 0,
        "expert_shared_feed_forward_length": shared,
        "hyper_connection.low_rank": of("output_hc_down.weight", 0),
        "moe_latent_size": of(".ffn_latent_down.weight", 0),
    }
    return {key: size for key, size in sizes.items() if size is not None}


def _step(model: SaidModel, experts: list[int]) -> int:
    """Every how many layers there are experts, behind the dense ones at the start."""
    count = model.value("block_count")
    first = model.value("leading_dense_block_count") or 0
    for step in range(1, count + 1):
        if experts == [layer for layer in range(first, count) if (layer + 1) % step == 0]:
            return step
    return 1


def _sections(file: ModelFile, model: SaidModel) -> list[int]:
    """The pairs of a head by the axes of a position, of which a text has one value."""
    config = language_model(read_json(file.path / CONFIG))
    for name in ("rope_scaling", "rope_parameters"):
        stated = config.get(name)
        listed = stated.get("mrope_section") if isinstance(stated, Mapping) else None
        if isinstance(listed, list) and listed and all(type(size) is int for size in listed):
            return [*listed, 0, 0, 0][:4]
    pairs = (model.value("rope.dimension_count") or 0) // 2
    return [-(-(pairs - axis) // 3) for axis in range(3)] + [0]


def typed(short: str, metadata: Metadata, key: str) -> StoredValue:
    """A value in the type that llama.cpp reads it in."""
    kind, count, value = metadata.beginning(key, 0)
    if count is not None:
        value = metadata[key]
    if kind == "f64" or (key.startswith(FLOATS) and kind == "i64" and key not in SIGNED):
        kind = "f32"
    elif kind == "i64":
        kind = "u64" if short in WIDE else "i32" if count is not None or key in SIGNED else "u32"
        least, most = {"u64": (0, 1 << 64), "i32": (-(1 << 31), 1 << 31), "u32": (0, 1 << 32)}[kind]
        for number in [value] if count is None else value:
            if not least <= number < most:
                raise UsageError(f"convert: {key} = {number}: wanted a number from {least} to {most - 1}")
    return StoredValue(kind, count, lambda limit: value if limit is None or count is None else value[:limit])
