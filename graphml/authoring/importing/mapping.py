"""The `FAMILY` of an imported file: fields of config.json to keys, names of the checkpoint to ours.

Knows config.json and names; nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from graphml.authoring.importing.document import arguments
from graphml.authoring.importing.naming import pattern
from graphml.authoring.importing.places import ParameterPlace, StoredParameter
from graphml.authoring.importing.rope_fields import (
    ROPE_FIELDS,
    base_by_layer,
    of_positions,
    rope_text,
    rotating,
)
from graphml.authoring.importing.writing import LAYER_EPS, Writer
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.config import HfConfig, class_fields
from graphml.loading.huggingface.config_names import HARMLESS, NUMBERS, SIZES
from graphml.loading.huggingface.tensors import LEFT_OUT, PREFIXES

WIDE = 108  # characters of a line
FAMILY = "graphml.loading.huggingface.family"
OF_EXPERTS = (
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_shared_count",
    "leading_dense_block_count",
)  # of no influence beside the shapes of tensors, and which layers have them


def mapping(
    writer: Writer,
    tensors: Sequence[ParameterPlace],
    stored: Mapping[str, list[StoredParameter]],
    held: Sequence[str],
) -> str:
    """The text of `keys`, `NAMES` and `FAMILY`."""
    names = _names(writer, tensors, stored, held)
    keys, defaults = _keys(writer)
    writer.imports.setdefault("graphml.loading.huggingface.config", set()).update(("HfConfig", "Value"))
    writer.imports.setdefault(FAMILY, set()).add("Family")
    config = writer.description.config
    kind = str(config.get("model_type", "imported"))
    lines = [
        "FAMILY = Family(",
        f'    model_types=("{kind}",), architecture="{kind.replace("_", "-")}", keys=keys,',
        "    names={",
        *_filled(names, 8),
        "    },",
    ]
    if defaults:
        lines.append(f"    defaults={defaults!r},".replace("'", '"'))
    if writer.fields.pins.ignored:
        lines += [
            "    ignored=(",
            *_filled([f'"{name}"' for name in writer.fields.pins.ignored], 8),
            "    ),",
        ]
    return keys + "\n\n\n" + "\n".join([*lines, ")  # fmt: skip"])


def _filled(entries: Sequence[str], indent: int) -> list[str]:
    """The entries in lines that are as full as they may be."""
    lines: list[str] = []
    for entry in entries:
        head, sign, rest = entry.partition('": (')
        if sign and len(entry) + indent >= WIDE:
            inner = [f"{' ' * (indent + 4)}{part}," for part in arguments(rest[:-1])]
            lines += [f'{" " * indent}{head}": (', *inner, f"{' ' * indent}),"]
        elif lines and lines[-1].strip() != ")," and len(lines[-1]) + len(entry) + 2 <= WIDE:
            lines[-1] += f" {entry},"
        else:
            lines.append(f"{' ' * indent}{entry},")
    return lines


def _keys(writer: Writer) -> tuple[str, dict[str, Any]]:
    """The text of the function `keys`, and what the class assumes where config.json lacks a field."""
    fields, config = writer.fields, writer.description.config
    imports = writer.imports.setdefault("graphml.loading.huggingface.config", set())
    imports.add("decoder_keys")
    name, defaults = fields.eps_field(writer.eps_key, writer.eps)
    if defaults and any(field_name in config for field_name in NUMBERS[writer.eps_key]):
        fields.keys.setdefault(writer.eps_key, repr(writer.eps))  # a field that says another eps is not read
    more = f', "{writer.eps_key}"' if writer.eps_key == LAYER_EPS or name else ""
    more += f', "{name}"' if name else ""
    lines = [*_followed(writer), f"found = decoder_keys(config{more})"]
    lines += _key_length(writer)
    if writer.tables:
        read, text = rope_text(writer)
        writer.imports.setdefault("graphml.loading.huggingface.rope", set()).add(read)
        lines.append(f"found |= {text}")
        lines += rotating(writer)
        lines += base_by_layer(writer)
        if writer.turns_back:
            writer.imports["graphml.loading.huggingface.rope"].add("turned_back")
            lines.append("turned_back(config, found)")
    for expr in writer.found.before:
        if expr.op == "sinusoids":
            writer.imports.setdefault("graphml.loading.huggingface.sinusoids", set()).add("add_sinusoids")
            settings = ", ".join(f"{name}={value}" for name, value in expr.numbers.items())
            lines.append(f"add_sinusoids(config, found, {settings})")
    if writer.experts:
        expert_keys = [key for key in OF_EXPERTS if _as_read(writer).get(*SIZES[key]) is not None]
        keys = dict.fromkeys(("expert_count", "expert_used_count", *expert_keys))
        lines += [f'found["{key}"] = config.size("{key}")' for key in keys if key not in fields.keys]
    for key, text in fields.keys.items():
        lines.append(f"found |= {text}" if key.startswith("*") else f'found["{key}"] = {text}')
    checks = _checks(writer, "\n".join(lines), defaults)
    if len(lines) == 2 and writer.tables:
        lines = [lines[0], *checks, f"return found | {text}"]
    else:
        lines += [*checks, "return found"]
    of_class = _as_read(writer)
    defaults |= {
        key_name: value
        for key_name, value in _assumed(writer).items()
        if key_name not in config or not of_class.is_read(key_name)
    }
    head = [
        "def keys(config: HfConfig) -> dict[str, Value]:",
        '    """Sizes and settings from config.json."""',
    ]
    head += [f"    {line}" for line in _pinned(writer)]
    return "\n".join([*head, *(f"    {line}" for line in lines)]), defaults


def _as_read(writer: Writer) -> HfConfig:
    """The config.json, of which the fields count that the class reads."""
    config = writer.description.config
    reads = class_fields().get(str(config.get("model_type")))
    return HfConfig(Path("config.json"), config, {}, reads=reads)


def _followed(writer: Writer) -> list[str]:
    """Sizes of decoders that have names of their own beside those of an encoder."""
    config, lines = writer.fields.config, []
    if not any(config.get(name) for name in SIZES["block_count"]):
        listed = next((name for name, value in config.items() if _is_by_layer(writer, value)), "")
        if listed:  # a word for each layer says how many there are
            lines.append(f'config.follows("num_hidden_layers", len(config.get("{listed}") or []))')
    heads = writer.sizes[0]
    for key, of_decoder, size in (
        ("block_count", "decoder_layers", len(writer.found.layers)),
        ("feed_forward_length", "decoder_ffn_dim", None),
        ("attention.head_count", "decoder_attention_heads", heads),
    ):
        if of_decoder in config and size in (None, config[of_decoder]):
            lines.append(f'config.follows("{SIZES[key][0]}", config.size("{of_decoder}"))')
    return lines


def _key_length(writer: Writer) -> list[str]:
    """The width of heads, where config.json has a field for it that says another: latent attention's does."""
    config, width = writer.fields.config, writer.sizes[2]
    names = [name for name in SIZES["attention.key_length"] if config.get(name) is not None]
    if not names or config[names[0]] == width:
        return []
    parts = {name: value for name, value in config.items() if name.endswith("_dim") and type(value) is int}
    sums = [
        pair
        for pair in combinations(parts, 2)
        if sum(parts[name] for name in pair) == width and pair[0].split("_")[0] == pair[1].split("_")[0]
    ]
    whole = [name for name, value in parts.items() if value == width and "head" in name]
    fields = [*sums, whole[:1]][0]
    read = " + ".join(f'config.size("{name}")' for name in fields) or str(width)
    return [f'found["attention.key_length"] = {read}']


def _assumed(writer: Writer) -> dict[str, Any]:
    """Sizes as they were traced, for fields that config.json leaves to its class."""
    heads, kv, width = writer.sizes
    config = writer.description.config
    assumed: dict[str, Any] = {}
    hidden = next(
        (config[name] for name in SIZES["embedding_length"] if isinstance(config.get(name), int)), 0
    )
    for key, value, implied in (
        ("attention.head_count", heads, None),
        ("attention.head_count_kv", kv, heads),
        ("attention.key_length", width, hidden // max(heads, 1)),
    ):
        named = _as_read(writer).get(*SIZES[key])
        configured = implied if named is None else named
        if configured != value:
            assumed[SIZES[key][0]] = value
    return assumed


def _checks(writer: Writer, text: str, defaults: Mapping[str, Any]) -> list[str]:
    """Fields that were of no visible influence: other checkpoints must have the same values."""
    config = writer.description.config
    by_key = {name for key, names in SIZES.items() if f'config.size("{key}")' in text for name in names}
    read = {name for names in (*SIZES.values(), *NUMBERS.values()) for name in names} | set(ROPE_FIELDS)
    checks = []
    for name, value in config.items():
        by_windows = "window_keys" in text and name in ("layer_types", "sliding_window")
        known = name in HARMLESS or f'"{name}"' in text or value is None or by_windows or name in by_key
        if name in writer.fields.pins.pinned or name in writer.fields.pins.ignored:
            continue
        if known or (name in read and name not in ("sliding_window",) and _is_read(writer, name)):
            continue
        if name in ("tie_word_embeddings", "is_encoder_decoder", "quantization_config"):
            continue
        if (
            isinstance(value, bool | int | float | str)
            or value in ([], {})
            or not _is_by_layer(writer, value)
        ):
            checks.append(f'config.only("{name}", {value!r})'.replace("'", '"'))
        else:
            words = ", ".join(f"{word!r}: True" for word in dict.fromkeys(value)).replace("'", '"')
            checks.append(f'config.layered("{name}", {{{words}}}, config.size("block_count"))')
    return checks


def _pinned(writer: Writer) -> list[str]:
    """Fields that trials could not change: other checkpoints must have the traced values."""
    config, lines, inner = writer.description.config, [], "text_config."
    for whole, value in {**of_positions(writer), **writer.fields.pins.pinned}.items():
        path = whole.removeprefix(inner)
        if isinstance(config.get("text_config"), dict) and path == whole:
            continue  # of the larger model, which the file does not read
        needed = "" if whole.partition(".")[0] in config else ", needed=False"
        lines.append(f'config.pinned("{path}", {value!r}{needed})'.replace("'", '"'))
    return lines


def _is_by_layer(writer: Writer, value: Any) -> bool:
    """Whether a field has a word for each layer."""
    words = isinstance(value, list) and all(isinstance(word, str | int) for word in value)
    return words and len(value) == len(writer.found.layers)


def _is_read(writer: Writer, name: str) -> bool:
    """Whether `decoder_keys` or `rope_keys` reads the field."""
    basic = (
        "context_length",
        "vocab_size",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
    )
    if name in ROPE_FIELDS:
        return bool(writer.tables)
    return any(name in SIZES[key] for key in basic) or name in NUMBERS[writer.eps_key]


def _short(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def _names(
    writer: Writer,
    tensors: Sequence[ParameterPlace],
    stored: Mapping[str, list[StoredParameter]],
    held: Sequence[str],
) -> list[str]:
    """The entries of `names`, as text."""
    entries: dict[str, list[tuple[str, str]]] = {}
    tied = bool(writer.description.config.get("tie_word_embeddings", False))
    for place in tensors:
        if tied and place.name == "output.weight":
            continue
        for stored_tensor in stored.get(place.parameter, ()):
            ours = place.name
            if stored_tensor.part is not None and stored_tensor.part[1] == 2:
                ours = ours.replace("gate_up", "gate" if stored_tensor.part[0] == 0 else "up")
            entries.setdefault(_short(stored_tensor.pattern), []).append((ours, _change(writer, place)))
        if not stored.get(place.parameter):
            raise ArchitectureError(
                f"{_reader(writer, place)}: the checkpoint has no tensor that is {place.parameter}, which "
                f"{place.name} needs"
            )
    read = {operand for node in writer.description.nodes.values() for operand in node.operands}
    unread = {leaf.name for name, leaf in writer.description.inputs.items() if name not in read}
    known = {
        stored_tensor.pattern for name, ones in stored.items() for stored_tensor in ones if name not in unread
    }
    unused = dict.fromkeys(
        pattern(name) for name in held if pattern(name) not in known and not LEFT_OUT.fullmatch(name)
    )
    lines = [f'"{source}": {_target(targets)}' for source, targets in _joined(entries).items()]
    for change in ("plus_one", "transposed", "as_float32", "flat"):
        if any(change in line for line in lines):
            writer.imports.setdefault(FAMILY, set()).add(change)
    for helper, sign in (("To", "To("), ("rows", "rows("), ("after", "after(")):
        if any(sign in line for line in lines):
            writer.imports.setdefault(FAMILY, set()).add(helper)
    return (
        lines
        + [
            f'"{_short(stored_name)}": None'
            for stored_name in unused
            if not (tied and stored_name == "lm_head.weight")
        ]
        + (
            ['"lm_head": "output"']
            if tied and "lm_head.weight" in held and "lm_head.weight" not in entries
            else []
        )
    )


def _reader(writer: Writer, place: ParameterPlace) -> str:
    """Op, module path and source line of what first reads a parameter."""
    description = writer.description
    names = {name for name, leaf in description.inputs.items() if leaf.name == place.parameter}
    readers = (node for node in description.nodes.values() if names & set(node.operands))
    return next((node.told for node in readers), place.parameter)


def _joined(entries: Mapping[str, list[tuple[str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """Weight and bias under one name where both have the same target and change."""
    joined: dict[str, list[tuple[str, str]]] = {}
    for source, targets in entries.items():
        stem, _, suffix = source.rpartition(".")
        if suffix not in ("weight", "bias") or not all(name.endswith(f".{suffix}") for name, _ in targets):
            joined[source] = targets
            continue
        short = [(name.removesuffix(f".{suffix}"), change) for name, change in targets]
        other = joined.get(stem)
        if other is None or [target[0] for target in other] != [target[0] for target in short]:
            joined[source if other else stem] = targets if other else short
        elif any(
            a[1] != b[1] and not (b[1] == "" and a[1] == "transposed")
            for a, b in zip(other, short, strict=True)
        ):
            joined[f"{stem}.weight"] = [(f"{name}.weight", change) for name, change in joined.pop(stem)]
            joined[source] = targets
    return joined


def _target(targets: list[tuple[str, str]]) -> str:
    texts = [f'To("{name}", {change})' if change else f'"{name}"' for name, change in targets]
    if len(texts) == 1:
        return texts[0]
    return "(" + ", ".join(text if text.startswith("To(") else f"To({text}, after())" for text in texts) + ")"


def _change(writer: Writer, place: ParameterPlace) -> str:
    """The change of a tensor as text."""
    changes = [place.change] if place.change else []
    if place.name.endswith(("ffn_gate_inp.weight", "exp_probs_b.bias")):
        changes.append("as_float32")
    if place.rows is not None:
        changes.append(_rows(writer, place))
    if len(changes) > 1:
        return f"after({', '.join(changes)})"
    return changes[0] if changes else ""


def _rows(writer: Writer, place: ParameterPlace) -> str:
    """Which rows, by numbers of heads where that is what they are."""
    rows = np.array(place.rows)
    leaf = next(
        tensor_input
        for tensor_input in writer.description.inputs.values()
        if tensor_input.name == place.parameter
    )
    total = leaf.shape[-1] if place.change == "transposed" and len(leaf.shape) > 1 else leaf.shape[0]
    left = total - len(rows)
    last = np.array_equal(rows, np.arange(left, total))
    if (
        place.name == "position_embd.weight"
        and last
        and any(writer.fields.config.get(name) == len(rows) for name in SIZES["context_length"])
    ):
        length = f'c.size("context_length") + {left}'
        return f"rows(lambda c: (1, {length}, {left}, {length}))"
    heads, kv, width = writer.sizes
    names: dict[int, str] = {1: "1"}
    config = writer.fields.config
    for key, value in (("attention.head_count_kv", kv), ("attention.head_count", heads)):
        if any(config.get(name) == value for name in SIZES[key]):
            names[value] = f'c.size("{key}")'
    n, k = names.get(heads, str(heads)), names.get(kv, str(kv))
    for groups in dict.fromkeys((1, kv, heads, *OTHER_GROUPS)):
        for count, counted, sizes in _layouts(heads, kv, width, total, groups, n, k):
            if total % (groups * count):
                continue
            unit = total // (groups * count)
            chosen = np.arange(total).reshape(groups, count, unit)
            first = rows[0] // unit
            size = len(rows) // (groups * unit)
            if size and np.array_equal(chosen[:, first : first + size].reshape(-1), rows):
                start, stop = sizes(first), sizes(first + size)
                return f"rows(lambda c: ({names.get(groups, str(groups))}, {counted}, {start}, {stop}))"
    for groups in dict.fromkeys((1, kv, heads)):
        of_group, count = total // groups, len(rows) // groups
        chosen = np.arange(groups)[:, None] * of_group + rows[0] + np.arange(count)
        if total % groups == 0 and np.array_equal(chosen.reshape(-1), rows):
            extents = (int(rows[0]), count, of_group - int(rows[0]) - count)
            texts = [_configured(config, size) for size in extents]
            counted, start, stop = (
                " + ".join(text for text in texts[:end] if text) or "0" for end in (3, 1, 2)
            )
            return f"rows(lambda c: ({names.get(groups, str(groups))}, {counted}, {start}, {stop}))"
    raise ArchitectureError(
        f"{_reader(writer, place)}: {place.name}: rows of {place.parameter} in an order that "
        "`graphml import` cannot write"
    )


def _configured(config: Mapping[str, Any], size: int) -> str:
    """A size by the one field of config.json that says it; else as a number, empty for 0."""
    names = [
        name
        for name, value in config.items()
        if value == size and name.endswith(OF_PARTS) and name != "vocab_size"
    ]
    return f'c.size("{names[0]}")' if len(names) == 1 else str(size or "")


OF_PARTS = ("_rank", "_dim", "_size", "_length")  # ends of names of sizes
OTHER_GROUPS = (2, 4, 8)  # of rows, whatever the heads: CodeGen's shards
Layout = tuple[int, str, Callable[[int], str]]


def _layouts(heads: int, kv: int, width: int, total: int, groups: int, n: str, k: str) -> list[Layout]:
    """How many parts a group may have, as text, and the text of a boundary."""
    layouts: list[Layout] = [(count, str(count), str) for count in (2, 3)]
    per = heads // kv
    shared = f"{n} // {k}"
    if groups == 1 and heads != kv:
        known = {0: "0", heads: n, heads + kv: f"{n} + {k}", heads + 2 * kv: f"{n} + 2 * {k}"}
        layouts.append((heads + 2 * kv, f"{n} + 2 * {k}", lambda at: known.get(int(at), str(at))))
    if (groups == kv and per > 1) or groups == 1:
        inner = {0: "0", per: shared, per + 1: f"{shared} + 1", per + 2: f"{shared} + 2"}
        layouts.append((per + 2, f"{shared} + 2", lambda at: inner.get(int(at), str(at))))
    return layouts
