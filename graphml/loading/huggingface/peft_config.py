"""Reads adapter_config.json of PEFT: which modules have a pair, and by what it is multiplied.

Fields that change what is computed and have no place here are refused by their names, and so is every field
that is not known and is not empty. Knows the file's fields (`LoraConfig` of peft 0.21); nothing of tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.module_patterns import NamePatterns, Pattern

CONFIG = "adapter_config.json"
LARGEST_RANK = 1 << 16
MOST_PATTERNS = 1 << 12
EMPTY: tuple[Any, ...] = (None, False, [], {}, "")
# What a base model or training needs, and what the tensors of the file say themselves.
HARMLESS = frozenset((
    "alora_invocation_tokens", "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config",
    "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "task_type",
))  # fmt: skip
READ = frozenset((
    "alpha_pattern", "bias", "exclude_modules", "fan_in_fan_out", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_bias", "peft_type", "r", "rank_pattern", "target_modules",
    "use_rslora",
))  # fmt: skip
STARTS = ("gaussian", "eva", "orthogonal")
"""What factors begin training with, where the weights of the model stay as they are."""
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True)
class PeftConfig:
    """The fields of a LoRA. patterns: regular expressions of names, each with its rank or alpha."""

    path: Path
    rank: int
    alpha: float
    rslora: bool
    lora_bias: bool
    ranks: Mapping[str, tuple[Pattern, int]]
    alphas: Mapping[str, tuple[Pattern, float]]
    targets: tuple[str, ...] | Pattern
    excluded: tuple[str, ...] | Pattern
    layers: tuple[int, ...]
    layer_parts: tuple[str, ...]
    invocation: tuple[int, ...]

    def rank_of(self, module: str) -> int:
        """The rank that a module's pair has."""
        found_ranks = (rank for pattern, rank in self.ranks.values() if pattern.ends(module))
        return next(found_ranks, self.rank)

    def scaling(self, module: str) -> float:
        """By what the product of a module's pair is multiplied: alpha / r, or alpha / sqrt(r) (rsLoRA)."""
        found_alphas = (alpha for pattern, alpha in self.alphas.values() if pattern.ends(module))
        rank = self.rank_of(module)
        return next(found_alphas, self.alpha) / (math.sqrt(rank) if self.rslora else rank)

    def targeted(self, module: str) -> bool:
        """Whether PEFT gives this module a pair (`check_target_module_exists`)."""
        if _named(self.excluded, module) or not _named(self.targets, module):
            return False
        if not self.layers:
            return True
        number = _LAYER.match(module)
        if self.layer_parts:
            parts = "|".join(map(re.escape, self.layer_parts))
            number = re.match(rf"(?:^|.*?\.)(?:{parts})\.(\d+)\.", module)
        return number is not None and int(number[1]) in self.layers


def read_peft_config(path: Path) -> PeftConfig:
    """The config of a folder; WeightsError for what is no LoRA, or one that graphml does not compute."""
    return _Fields(path / CONFIG).config()


def _named(names: tuple[str, ...] | Pattern, module: str) -> bool:
    if isinstance(names, Pattern):
        return names.matches(module)
    return any(module == name or module.endswith(f".{name}") for name in names)


class _Fields:
    def __init__(self, path: Path) -> None:
        self._path, self._fields = path, read_json(path)
        self._known = NamePatterns(path)

    def config(self) -> PeftConfig:
        kind = self._fields.get("peft_type")
        if kind != "LORA":
            raise self._error("peft_type", "'LORA'", kind)
        for name, value in self._fields.items():
            if name not in READ | HARMLESS and value not in EMPTY:
                raise WeightsError(
                    f"{self._path}: {name[:80]} = {str(value)[:80]}: graphml does not compute this; "
                    "wanted none"
                )
        start = self._fields.get("init_lora_weights", True)
        if not isinstance(start, bool) and start not in STARTS:
            wanted = f"true, false or {', '.join(STARTS)}: others change the model's own weights"
            raise self._error("init_lora_weights", wanted, start)
        if self._fields.get("bias", "none") not in ("none", "all", "lora_only"):
            raise self._error("bias", "'none', 'all' or 'lora_only'", self._fields["bias"])
        self._flag("fan_in_fan_out")  # how the module stores its weight: the factors are the same
        targets, layers = self._names("target_modules"), self._layers()
        if not isinstance(targets, Pattern) and not targets:
            raise self._error("target_modules", "names or a pattern", self._fields.get("target_modules"))
        if isinstance(targets, Pattern) and layers:
            raise self._error("layers_to_transform", "none beside a pattern of target_modules", layers)
        parts = self._fields.get("layers_pattern") or []
        parts = [parts] if isinstance(parts, str) else parts
        if not isinstance(parts, list) or not all(
            isinstance(part, str) and re.fullmatch(r"\w+", part) for part in parts
        ):
            raise self._error("layers_pattern", "names of modules", parts)
        rank = self._rank("r", self._fields.get("r", 8))
        alpha = self._number("lora_alpha", self._fields.get("lora_alpha", 8))
        return PeftConfig(
            self._path, rank, alpha, self._flag("use_rslora"), self._flag("lora_bias"),
            {text: (pattern, self._rank(where, value))
             for text, pattern, where, value in self._patterns("rank_pattern")},
            {text: (pattern, self._number(where, value))
             for text, pattern, where, value in self._patterns("alpha_pattern")},
            targets, self._names("exclude_modules"), layers, tuple(parts),
            self._whole("alora_invocation_tokens"),
        )  # fmt: skip

    def _error(self, name: str, wanted: str, came: Any) -> WeightsError:
        return WeightsError(f"{self._path}: {name}: wanted {wanted}; got {str(came)[:80]!r}")

    def _flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if value not in (None, True, False) or not isinstance(value, bool | None):
            raise self._error(name, "true or false", value)
        return bool(value)

    def _rank(self, name: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= LARGEST_RANK:
            raise self._error(name, f"a number from 1 to {LARGEST_RANK}", value)
        return value

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise self._error(name, "a number", value)
        return float(value)

    def _whole(self, name: str) -> tuple[int, ...]:
        values = self._fields.get(name) or []
        if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
            raise self._error(name, "a list of numbers from 0 up", values)
        return tuple(values)

    def _layers(self) -> tuple[int, ...]:
        value = self._fields.get("layers_to_transform")
        return (value,) if type(value) is int and value >= 0 else self._whole("layers_to_transform")

    def _names(self, name: str) -> tuple[str, ...] | Pattern:
        value = self._fields.get(name) or []
        if isinstance(value, str):
            if value == "all-linear":
                raise self._error(name, "names or a pattern, as PEFT saves them", value)
            return self._pattern(name, value)
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self._error(name, "a list of names or a pattern", value)
        if len(value) > MOST_PATTERNS:
            raise self._error(name, f"at most {MOST_PATTERNS} names", len(value))
        return tuple(value)

    def _pattern(self, name: str, text: str) -> Pattern:
        try:
            return self._known.pattern(text)
        except ValueError as error:
            raise WeightsError(f"{self._path}: {name}: {error}") from error

    def _patterns(self, name: str) -> list[tuple[str, Pattern, str, Any]]:
        """Each pattern of a field: its text, itself, where it is, and its value."""
        values = self._fields.get(name) or {}
        if not isinstance(values, dict) or len(values) > MOST_PATTERNS:
            raise self._error(name, f"an object of at most {MOST_PATTERNS} patterns", values)
        return [
            (text, self._pattern(name, text), f"{name}: {text[:80]}", value) for text, value in values.items()
        ]
