"""Converts a config.json of Hugging Face transformers to GGUF's keys and traits; lists unknown values.

Knows names in config.json and in GGUF; nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.authoring.draft.traits import Traits
from graphml.errors import UsageError, WeightsError
from graphml.loading.huggingface.config_names import ACTIVATIONS, HARMLESS, NUMBERS, SIZES
from graphml.loading.huggingface.json_files import read_json, with_text_config

Value = int | float | str | bool | list[int]

# Facts that a config.json lacks; by model_type, or its prefix.
PLUS_ONE_AND_SCALED = ("gemma", "recurrent_gemma")
WITH_POST_NORMS = ("gemma2", "gemma3", "glm4", "plamo3")
WITH_HEAD_NORMS = ("qwen3", "gemma3", "hunyuan_v1", "exaone4")
PLAIN_FEED_FORWARD = ("gpt", "phi", "falcon", "bloom", "mpt", "starcoder", "opt", "codeshell", "nemotron")
# Irrelevant to the graph, or written when the file is converted.
SILENT = HARMLESS | frozenset((
    "max_window_layers", "rope_interleaved", "is_decoder", "quantization_config", "architecture", "name",
))  # fmt: skip


@dataclass(frozen=True)
class DraftedConfig:
    """keys: GGUF's keys without the architecture's prefix -> values. left: unused (name, value).

    notes: assumptions, and work to be done elsewhere.
    """

    model_type: str
    traits: Traits
    keys: Mapping[str, Value]
    tied: bool
    biases: bool
    left: tuple[tuple[str, Any], ...]
    notes: tuple[str, ...]


def read_config(path: Path) -> DraftedConfig:
    """Read a config.json; a UsageError for an invalid one, or one that lacks a size."""
    try:
        config = with_text_config(read_json(path))
    except WeightsError as error:
        raise UsageError(str(error)) from None
    return _Reader(path, config).read()


class _Reader:
    """Reads values of a config by name, and records which are left."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self.config = path, config
        self.used = {"text_config", "vision_config"}
        self.notes: list[str] = []
        self.keys: dict[str, Value] = {}

    def take(self, *names: str) -> Any:
        """The first value that exists and is not null; all of them count as read."""
        self.used.update(names)
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)

    def read(self) -> DraftedConfig:
        kind = str(self.take("model_type") or "")
        self._sizes()
        self._rope()
        layered = "attention.layer_norm_epsilon" in self.keys
        activation_name = self.take("hidden_act", "hidden_activation", "activation_function", "activation")
        activation = ACTIVATIONS.get(str(activation_name or "silu").lower())
        if activation is None:
            self.used -= {"hidden_act", "hidden_activation", "activation_function", "activation"}
        plain = kind.startswith(PLAIN_FEED_FORWARD) and not kind.startswith("phi3")
        gated = not plain and (not layered or activation == "silu")
        if kind.startswith(PLUS_ONE_AND_SCALED):
            self.keys.setdefault("embedding_scale", self._whole("embedding_length") ** 0.5)
            self.notes.append("norms multiply with 1 + weight: add the 1 when the file is converted")
        scalar = self.take("query_pre_attn_scalar")
        if scalar:
            self.keys["attention.scale"] = float(scalar) ** -0.5
        divided = self.take("logits_scaling")
        if divided:
            self.keys["logit_scale"] = 1.0 / float(divided)
        windows = self._windows()
        traits = Traits(
            norm="layer_norm" if layered else "rms_norm",
            activation=activation or "silu",
            gated=gated,
            rope=self._has_rope(kind),
            learned_positions=kind in ("gpt2", "gpt_bigcode", "opt", "starcoder"),
            alibi=bool(self.take("alibi", "use_alibi")) or kind in ("bloom", "mpt"),
            head_norms=bool(self.take("use_qk_norm", "qk_layernorm", "qk_norm"))
            or kind.startswith(WITH_HEAD_NORMS),
            post_norms=kind.startswith(WITH_POST_NORMS),
            parallel=bool(self.take("use_parallel_residual", "parallel_attn"))
            or kind in ("phi", "cohere", "cohere2"),
            windows=windows,
            score_cap="attn_logit_softcapping" in self.keys,
            logit_cap="final_logit_softcapping" in self.keys,
            embedding_scale=self.keys.get("embedding_scale", 1.0) != 1.0,
            residual_scale=self.keys.get("residual_scale", 1.0) != 1.0,
            logit_scale=self.keys.get("logit_scale", 1.0) != 1.0,
            experts=bool(self.keys.get("expert_count")),
            sigmoid_experts=self.take("scoring_func") == "sigmoid",
            shared_experts=bool(self.keys.get("expert_shared_count"))
            or "expert_shared_feed_forward_length" in self.keys,
            latent="attention.kv_lora_rank" in self.keys,
            recurrent=self.take("mamba_d_state", "state_size", "linear_num_key_heads") is not None,
        )
        if traits.experts:
            self.keys["expert_weights_norm"] = bool(self.take("norm_topk_prob") is not False)
        tied = bool(self.take("tie_word_embeddings"))
        biases = (
            bool(self.take("attention_bias", "qkv_bias", "use_bias", "use_qkv_bias", "bias"))
            or kind == "qwen2"
        )
        self.take("mlp_bias")
        left = tuple(
            (name, value)
            for name, value in self.config.items()
            if name not in self.used | SILENT and value is not None
        )
        return DraftedConfig(kind, traits, self.keys, tied, biases, left, tuple(self.notes))

    def _sizes(self) -> None:
        for key, names in SIZES.items():
            value = self.take(*names)
            if isinstance(value, int) and not isinstance(value, bool):
                self.keys[key] = value
        for key, names in NUMBERS.items():
            value = self.take(*names)
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.keys[key] = float(value)
        for key in ("embedding_length", "block_count", "attention.head_count", "vocab_size"):
            if self._whole(key) < 1:
                raise UsageError(
                    f"{self.path}: wanted one of {', '.join(SIZES[key])}, a size of at least 1; got nothing"
                )
        if self.take("multi_query"):
            self.keys["attention.head_count_kv"] = 1
        width, heads = self._whole("embedding_length"), self._whole("attention.head_count")
        self.keys.setdefault("attention.head_count_kv", heads)
        self.keys.setdefault("attention.key_length", max(width // heads, 1))
        self.keys.setdefault("feed_forward_length", 4 * width)
        if "context_length" not in self.keys:
            self.keys["context_length"] = 4096
            self.notes.append("context_length is 4096: config.json does not tell")
        if not any(name.endswith("epsilon") for name in self.keys):
            self.keys["attention.layer_norm_rms_epsilon"] = 1e-5
            self.notes.append("norms are RMS norms with an eps of 1e-5: config.json does not tell")
        if "attention.layer_norm_rms_epsilon" in self.keys:
            self.keys.pop("attention.layer_norm_epsilon", None)

    def _has_rope(self, kind: str) -> bool:
        return "rope.freq_base" in self.keys or kind not in (
            "gpt2",
            "gpt_bigcode",
            "opt",
            "starcoder",
            "bloom",
            "mpt",
        )

    def _rope(self) -> None:
        """Base, share of the head that rotates, and scaling; unknown values are left."""
        scaling = self._rope_parameters()
        if "rope_theta" in scaling:
            self.keys["rope.freq_base"] = float(scaling.pop("rope_theta"))
        part = scaling.pop("partial_rotary_factor", None) or self.take("partial_rotary_factor", "rotary_pct")
        if part and "rope.dimension_count" not in self.keys:
            width = self._whole("attention.key_length")
            self.keys["rope.dimension_count"] = int(float(part) * width) // 2 * 2
        kind = str(scaling.pop("rope_type", scaling.pop("type", "default")))
        if kind in ("linear", "yarn", "longrope", "su"):
            self._scaled("longrope" if kind == "su" else kind, scaling)
        elif kind == "llama3":
            for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
                scaling.pop(name, None)
            self.notes.append(
                "llama 3's rope scaling goes into the tensor rope_freqs when the file is converted"
            )
        elif kind != "default":
            scaling["rope_type"] = kind
        if scaling:
            self.config = {**self.config, "rope_scaling, the rest": scaling}

    def _rope_parameters(self) -> dict[str, Any]:
        """The rope parameters of layers with full attention."""
        rope = self.take("rope_scaling", "rope_parameters")
        scaling = dict(rope) if isinstance(rope, dict) else {}
        if not isinstance(scaling.get("full_attention"), dict):
            return scaling
        local = scaling.get("sliding_attention")
        if isinstance(local, dict) and "rope_theta" in local:
            self.keys["rope.freq_base_swa"] = float(local["rope_theta"])
        return dict(scaling["full_attention"])

    def _scaled(self, kind: str, scaling: dict[str, Any]) -> None:
        """Read the keys of a scaling; known ones are removed from the dictionary."""
        self.keys["rope.scaling.type"] = kind
        original = scaling.pop("original_max_position_embeddings", None)
        original = original or self.take("original_max_position_embeddings")
        factor = scaling.pop("factor", None)
        if factor and kind != "longrope":
            self.keys["rope.scaling.factor"] = float(factor)
        if original:
            self.keys["rope.scaling.original_context_length"] = int(original)
        named = {
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
            "attention_factor": "attn_factor",
        }
        for name, key in named.items():
            if isinstance(scaling.get(name), int | float):
                self.keys[f"rope.scaling.{key}"] = float(scaling.pop(name))
        if kind == "longrope":
            for name in ("short_factor", "long_factor"):
                scaling.pop(name, None)
            self.notes.append(
                "LongRoPE's factors go into the tensors rope_factors_short and rope_factors_long"
            )

    def _whole(self, key: str) -> int:
        """A size read before; 0 if there is none."""
        value = self.keys.get(key, 0)
        return value if isinstance(value, int) else 0

    def _windows(self) -> bool:
        kinds, period = self.take("layer_types"), self.take("sliding_window_pattern")
        switched_off = self.take("use_sliding_window") is False
        if switched_off or not self.keys.get("attention.sliding_window"):
            self.keys.pop("attention.sliding_window", None)
            return False
        if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
            local = [int("sliding" in kind or "local" in kind) for kind in kinds]
            if not any(local):
                self.keys.pop("attention.sliding_window", None)
                return False
            self.keys["attention.sliding_window_pattern"] = local
        elif isinstance(period, int):
            self.keys["attention.sliding_window_pattern"] = period
        else:
            self.notes.append("the window is taken to be every layer's: config.json has no layer_types")
        return True
