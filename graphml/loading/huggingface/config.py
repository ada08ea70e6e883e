"""config.json as families read it: by GGUF's key or the field's own name, in the old and the new style.

Every field that is read counts as understood; `check_all_read` refuses the others that the class of
transformers reads, because a field that changes the mathematics must not be passed over. Knows fields;
nothing of tensors.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import ArchitectureError
from graphml.loading.architecture import SMALLEST
from graphml.loading.huggingface.config_names import ACTIVATIONS, HARMLESS, NUMBERS, SCALES, SIZES

Value = int | float | str | bool | list[int] | list[bool] | list[str] | list[float]
CLASS_FIELDS = Path(__file__).with_name("class_fields.json")
LARGEST = 1 << 40
MOST_LAYERS = 1 << 14
GENERIC = frozenset((
    "is_encoder_decoder", "model_type", "per_layer_config", "quantization_config", "rope_scaling",
    "tie_word_embeddings",
))  # fmt: skip
"""Fields that the configs and models of all classes have."""
EXTENTS = frozenset((
    "vocab_size", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.kv_lora_rank", "attention.q_lora_rank",
    "rope.dimension_count", "expert_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
))  # fmt: skip
"""Keys of sizes that some tensor has: arrays are made of them before they are compared with it."""


class HfConfig:
    """The fields of a config.json, and of what its class assumes for those that it lacks.

    tensors: further tensors that follow from the fields, by our name, such as factors of rope. largest: the
    most that a size of the checkpoint's tensors can be. reads: the fields that the class reads, see
    `class_fields`; None: the class is not known. of_file: whether these are sizes of a GGUF file.
    """

    of_file = False

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, Any],
        defaults: Mapping[str, Any],
        largest: int = LARGEST,
        reads: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self._own = fields
        self._fields = {**defaults, **fields}
        self._largest = largest
        synonyms = {name: of["same_as"] for name, of in (reads or {}).items() if isinstance(of, dict)}
        self._synonyms = synonyms
        self._reads = None if reads is None else {**reads, **dict.fromkeys(synonyms)}
        self._optional = set(defaults)
        self._read: set[str] = set()
        self.tensors: dict[str, NDArray[np.float32]] = {}

    def error(self, text: str) -> ArchitectureError:
        """The error for something that is not understood."""
        return ArchitectureError(f"{self.path}: {text}")

    def get(self, *names: str) -> Any:
        """The first of these fields that is there and not null; they count as read.

        Only those that the class reads: others say nothing. Where none is there, what the class assumes.
        """
        return self._first(tuple(name for name in names if self.is_read(name)))

    def stated(self, *names: str) -> Any:
        """As `get`, but where the class reads none of them, the first that is there."""
        return self._first(tuple(name for name in names if self.is_read(name)) or names)

    def ignore(self, *names: str) -> None:
        """Count fields as read, which change nothing here, or which tensors or other fields say as well."""
        self._read.update(names)

    def _first(self, names: Sequence[str]) -> Any:
        self._read.update(names)
        fields = self._fields if any(name in self._fields for name in names) else self._reads or {}
        return next((fields[name] for name in names if fields.get(name) is not None), None)

    @property
    def is_known(self) -> bool:
        """Whether the fields that the class of transformers reads are recorded."""
        return self._reads is not None

    def is_read(self, name: str) -> bool:
        """Whether the class of transformers reads a field, or the family has a default of it.

        Of a class that is not known every field counts.
        """
        return self._reads is None or name in self._reads or name in self._optional or name in GENERIC

    def follows(self, name: str, value: Any) -> None:
        """State a field that follows from others, for what reads it later."""
        self._fields[name] = value
        self._optional.add(name)

    def size(self, key: str, default: int | None = None) -> int:
        """A size by its GGUF key, or by a field's own name; without a default it must be there."""
        names = SIZES.get(key, (key,))
        value = self.stated(*names) if key == "context_length" else self.get(*names)
        if value is None and default is not None:
            return default
        least = int(key == "block_count")
        if type(value) is not int or not least <= value <= LARGEST:
            wanted = f"wanted a number from {least} up; got {str(value)[:60]!r}"
            raise self.error(f"{' or '.join(names)}: {wanted}")
        most = MOST_LAYERS if key == "block_count" else self._largest if key in EXTENTS else LARGEST
        if value > most:
            where = "" if key == "block_count" else ", as no tensor of the checkpoint is larger"
            raise self.error(f"{names[0]}: wanted at most {most}{where}; got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number by its GGUF key, or by a field's own name; without a default it must be there."""
        names = NUMBERS.get(key, (key,))
        value = self.get(*names)
        if value is None and default is not None:
            return default
        number = self.checked_number(" or ".join(names), value)
        if number == 0 and not SCALES.isdisjoint(names):
            raise self.error(f"{' or '.join(names)}: wanted another number than 0")
        return number

    def cap(self, name: str) -> float:
        """The cap of scores or logits, a number above 0; 0 for none."""
        value = self.number(name, math.inf)
        if value <= 0:
            raise self.error(f"{name}: wanted null or a number above 0; got {value}")
        return 0.0 if value == math.inf else value

    def checked_number(self, name: str, value: Any) -> float:
        """A finite number; else the error names the field."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e38:
            raise self.error(f"{name}: wanted a number; got {str(value)[:60]!r}")
        if 0 < abs(value) < SMALLEST:
            raise self.error(f"{name}: wanted 0, or a number of at least {SMALLEST}; got {value}")
        return float(value)

    def single(self, name: str) -> float:
        """The one number of a list in which all others are 0."""
        listed = self.get(name)
        if not isinstance(listed, list) or not listed:
            raise self.error(f"{name}: wanted a list of numbers; got {str(listed)[:80]}")
        numbers = {self.checked_number(name, value) for value in listed} - {0.0}
        if len(numbers) != 1:
            raise self.error(f"{name}: wanted one number, and 0; got {sorted(numbers)[:8]}")
        return numbers.pop()

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.get(name)
        if value is None:
            value = default and not self._is_null(name)
        if not isinstance(value, bool):
            raise self.error(f"{name}: wanted true or false; got {str(value)[:60]!r}")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a field that is there with another value than these, which authors' code may read."""
        value = self.stated(name)
        if value is None and True in allowed and None not in allowed and self._is_null(name):
            value = "null"
        if value is not None and value not in allowed:
            wanted = " or ".join(map(repr, allowed)) or "no such field"
            raise self.error(f"{name} is {str(value)[:60]!r}: this architecture knows {wanted} alone")

    def pinned(self, path: str, traced: Any, needed: bool = True) -> None:
        """Refuse another value of a field than that of the model that a file was imported from.

        path: names with dots, of a field within others. needed: whether it has to be there.
        """
        name, *within = path.split(".")
        value = self.stated(name)
        for inner in within:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if (value == traced and type(value) is type(traced)) or (value is None and not needed):
            return
        raise self.error(
            f"{path}: wanted {str(traced)[:60]}, as in the model that this architecture was imported from; "
            f"got {str(value)[:60]}"
        )

    def _is_null(self, name: str) -> bool:
        """Whether a field is null, which is false to a class that reads it, whatever it assumes."""
        return name in self._own and self._own[name] is None and name in (self._reads or ())

    def window(self) -> int:
        """The tokens of `sliding_window`; 0 for none."""
        window = self.size("sliding_window", -1)
        if window == 0:
            raise self.error("sliding_window: wanted null or a number above 0; got 0")
        return max(window, 0)

    def activation(self, *allowed: str) -> str:
        """The activation function by graphml's name, one of these."""
        names = ("hidden_act", "hidden_activation", "activation_function", "activation")
        stated = self.get(*names)
        activation = ACTIVATIONS.get(str(stated).lower())
        if activation is None or activation not in allowed:
            raise self.error(
                f"{names[0]} is {str(stated)[:60]!r}: this architecture knows {' or '.join(allowed)}"
            )
        return activation

    def layered(self, name: str, kinds: Mapping[Any, bool], n_layer: int) -> list[bool] | None:
        """A list of words or numbers, one a layer, as truth values; None if the field is not there."""
        listed = self.get(name)
        if listed is None:
            return None
        if (
            not isinstance(listed, Sequence)
            or len(listed) != n_layer
            or any(kind not in kinds for kind in listed)
        ):
            wanted = " or ".join(map(str, kinds))
            raise self.error(f"{name}: wanted {n_layer} times {wanted}; got {str(listed)[:80]}")
        return [kinds[kind] for kind in listed]

    def check_all_read(self, ignored: Sequence[str] = ()) -> None:
        """Refuse fields that nobody read here and the class does, unless they have its own default.

        Of a class that is not known every field counts, but those that are known to be harmless. Two names of
        a field with two values are refused: transformers takes the one that the file has last.
        """
        for name, field in self._synonyms.items():
            first, second = self._own.get(name), self._own.get(field)
            if None not in (first, second) and first != second:
                got = f"{str(first)[:40]!r} and {str(second)[:40]!r}"
                raise self.error(f"{name} and {field} are names of one field: wanted one value; got {got}")
            if first is not None and field in self._read and field in self._own:
                self._read.add(name)
        known = self._read | HARMLESS | set(ignored)
        left = {name: value for name, value in self._own.items() if value is not None and name not in known}
        if self._reads is not None:
            left = {name: value for name, value in left.items() if value != self._reads.get(name, value)}
        if left:
            shown = ", ".join(f"{name} = {str(value)[:40]}" for name, value in list(left.items())[:8])
            raise self.error(
                f"fields that are not understood and may change what the model computes: {shown}. "
                "graphml refuses what it would have to ignore"
            )


def class_fields() -> Mapping[str, Mapping[str, Any]]:
    """By model_type the fields that its class of transformers reads, and its default where it is one value.

    Written by `tests/class_fields.py` from the source of the version that the file names.
    """
    recorded: dict[str, dict[str, Any]] = _classes()["model_types"]
    return recorded


def is_tied(kind: str, whole: Any, inner: Any) -> Any:
    """Whether the output matrix of a larger model is the embedding; None: the class does not say it.

    whole, inner: what its config and that of its language model say of it, None for nothing.
    """
    if whole is None:
        return True if kind in _classes()["tied"] else None
    return inner if not whole and inner and kind in _classes()["tied_by_text"] else whole


@functools.cache
def _classes() -> Mapping[str, Any]:
    recorded: dict[str, Any] = json.loads(CLASS_FIELDS.read_text(encoding="utf-8"))
    return recorded


RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def decoder_keys(
    config: HfConfig, eps: str = RMS_EPS, field: str = "", width: int | None = None
) -> dict[str, Value]:
    """What nearly every decoder has: sizes, heads, epsilon of the norms.

    eps: its GGUF key; field: of config.json, where it is none that the key stands for; width: of
    feed-forwards, where the field is not one number.

    Not rope, activation or windows: see `rope_keys`, `HfConfig.activation`, `window_keys`.
    """
    n_embd, heads = config.size("embedding_length"), config.size("attention.head_count")
    if not n_embd or not heads:
        raise config.error(
            f"hidden_size and num_attention_heads: wanted numbers above 0; got {n_embd}, {heads}"
        )
    head_dim = config.size("attention.key_length", n_embd // heads)
    heads_kv = config.size("attention.head_count_kv", heads)
    config.follows("num_key_value_heads", heads_kv)  # of a null as many as of queries
    keys: dict[str, Value] = {
        "context_length": config.size("context_length", 2048),
        "vocab_size": config.size("vocab_size"),
        "embedding_length": n_embd,
        "block_count": config.size("block_count"),
        "feed_forward_length": config.size("feed_forward_length", 4 * n_embd) if width is None else width,
        "attention.head_count": heads,
        "attention.head_count_kv": heads_kv,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        eps: config.number(field or eps),
    }
    return keys


def window_keys(
    config: HfConfig, keys: Mapping[str, Value], size: str = "sliding_window"
) -> dict[str, Value]:
    """The window of layers by `layer_types`; none where no layer has one."""
    n_layer = int(str(keys["block_count"]))
    kinds = {"sliding_attention": True, "full_attention": False}
    windowed = config.layered("layer_types", kinds, n_layer)
    window = config.get(size)
    if windowed is None:
        raise config.error("layer_types: wanted a list, which says what layers have a window")
    if not any(windowed):
        return {}
    if type(window) is not int or window < 1:
        raise config.error(f"{size}: wanted a number of tokens; got {str(window)[:60]!r}")
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": windowed}
