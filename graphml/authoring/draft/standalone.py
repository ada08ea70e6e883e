"""Writes an architecture file with a graph of its own from traits: config, build, attention, sample.

It uses the parts that built-in architectures share. Knows text; nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphml.authoring.draft.traits import Traits
from graphml.authoring.importing.document import config_class

LEGEND = "T tokens, O output rows, D model width, N heads, K key-value heads, H head width."

PAIRS = {"neox": "transformers has them", "norm": "files of llama have them; 'neox': as transformers"}


def standalone(
    title: str,
    notes: Sequence[str],
    traits: Traits,
    keys: Mapping[str, object],
    tied: bool,
    biases: bool,
    pairs: str = "neox",
) -> str:
    """The text of the file. keys: GGUF's, of the full size; the sample uses those that are no sizes.

    pairs: which elements a rope rotates together, as files of the architecture have them.
    """
    names: dict[str, set[str]] = {
        "graphml.loading.architecture": {"Layer", "SampleModel", "Tensors"},
        "graphml.ir.language": {"Builder"},
        "graphml.ir.node": {"Node"},
        "graphml_models._attention": {"project"},
        "graphml_models._samples": {"transformer"},
    }
    config = _config(traits, names)
    build = _build(traits, names)
    attention = _attention(traits, names, pairs)
    sample = _sample(traits, keys, tied, biases, names)
    head = [
        '"""' + title,
        "",
        *notes,
        *([""] if notes else []),
        LEGEND,
        '"""',
        "",
        "from __future__ import annotations",
        "",
    ]
    standard = (
        ["from dataclasses import dataclass", "from typing import Self", ""] if "@dataclass" in config else []
    )
    imports = [
        f"from {module} import {', '.join(sorted(names[module]))}"
        for module in sorted(names)
        if names[module]
    ]
    if "_config." in config:
        imports.insert(
            next((i for i, line in enumerate(imports) if line > "from graphml_models"), 0),
            "from graphml_models import _config",
        )
    body = [part for part in (config, build, attention, sample) if part]
    return "\n".join([*head, *standard, *imports]) + "\n\n\n" + "\n\n\n".join(body) + "\n"


def _config(traits: Traits, names: dict[str, set[str]]) -> str:
    layered = traits.norm == "layer_norm"
    fields: dict[str, tuple[str, str]] = {}  # name -> type, how it is read
    if traits.windows:
        names["graphml_models._windows"] = {"read_windows"}
        fields["windows"] = "tuple[int, ...]", "read_windows(keys, known.n_layer, period=0)"
    for wanted, key in (
        (traits.score_cap, "attn_logit_softcapping"),
        (traits.logit_cap, "final_logit_softcapping"),
        (traits.embedding_scale, "embedding_scale"),
        (traits.residual_scale, "residual_scale"),
        (traits.logit_scale, "logit_scale"),
    ):
        if wanted:
            fields[key] = "float", f'keys.number("{key}")'
    routed = traits.experts and (traits.shared_experts or traits.sigmoid_experts)
    if routed:
        names["graphml_models._routing"] = {"Routing", "shared_and_chosen"}
        gating = ", SIGMOID" if traits.sigmoid_experts else ""
        if gating:
            names["graphml_models._routing"].add("SIGMOID")
        fields["routing"] = "Routing", f"Routing.read(keys{gating})"
    if not fields:
        module = "graphml_models._layer_norm" if layered else "graphml_models._config"
        names.setdefault(module, set()).add("Config")
        return ""
    names["graphml.loading.architecture"].add("Keys")
    return config_class(fields, layered)


def _norm(traits: Traits, weights: str, x: str, tensor: str, name: str) -> str:
    if traits.norm == "layer_norm":
        return f'norm({weights}, {x}, "{tensor}", config.norm_eps)'
    return f'g.rms_norm({x}, {weights}["{tensor}"], config.norm_eps, "{name}")'


def _build(traits: Traits, names: dict[str, set[str]]) -> str:
    if traits.norm == "layer_norm":
        names.setdefault("graphml_models._layer_norm", set()).add("norm")
    lines = [
        "def build(g: Builder, config: Config, weights: Tensors) -> Node:",
        '    """Logits [O, vocabulary]."""',
    ]
    table = ""
    if traits.rope:
        lines.append("    table = config.rope.table(g, weights)")
        table = "table, "
    lines.append('    x_TD = g.embed(weights["token_embd"], g.tokens)')
    if traits.embedding_scale:
        lines.append('    x_TD = g.scale(x_TD, config.embedding_scale, name="embedding_scaled")')
    if traits.learned_positions:
        lines.append('    x_TD = g.add(x_TD, g.rows(weights["position_embd"], g.positions))')
    lines.append("    for layer in weights.layers(config.n_layer):")
    h = [f'h_TD = {_norm(traits, "layer", "x_TD", "attn_norm", "attn_norm")}',
         f"a_TD = attention(g, config, layer, {table}h_TD)"]  # fmt: skip
    h.append('a_TD = layer.linear(a_TD, "attn_output", "attn_out")')
    if traits.post_norms:
        h.append(f"a_TD = {_norm(traits, 'layer', 'a_TD', 'post_attention_norm', 'attn_post_norm')}")
    part = "g.scale({}, config.residual_scale)" if traits.residual_scale else "{}"
    h.append(f'x_TD = g.add(x_TD, {part.format("a_TD")}, "attn_residual")')
    if not traits.parallel:
        h.append(f"h_TD = {_norm(traits, 'layer', 'x_TD', 'ffn_norm', 'ffn_norm')}")
    h.append(f"h_TD = {_feed_forward(traits, names)}")
    if traits.post_norms:
        h.append(f"h_TD = {_norm(traits, 'layer', 'h_TD', 'post_ffw_norm', 'ffn_post_norm')}")
    h.append(f'x_TD = g.add(x_TD, {part.format("h_TD")}, "ffn_residual")')
    lines += [f"        {line}" for line in h]
    lines.append(
        f"    logits = weights.logits({_norm(traits, 'weights', 'x_TD', 'output_norm', 'output_norm')})"
    )
    if traits.logit_scale:
        lines.append("    logits = g.scale(logits, config.logit_scale)")
    lines.append(
        "    return g.softcap(logits, config.final_logit_softcapping)"
        if traits.logit_cap
        else "    return logits"
    )
    return "\n".join(lines)


def _feed_forward(traits: Traits, names: dict[str, set[str]]) -> str:
    if traits.experts and (traits.shared_experts or traits.sigmoid_experts):
        return "shared_and_chosen(g, config, layer, h_TD)"
    if traits.experts:
        names["graphml_models._experts"] = {"swiglu_experts"}
        return "swiglu_experts(g, layer, h_TD, config.n_expert_used)"
    names["graphml_models._ffn"] = {"gated_ffn" if traits.gated else "plain_ffn"}
    act = f"Builder.{traits.activation}"
    if traits.activation == "relu_squared":
        names["graphml_models._ffn"].add("relu_squared")
        act = "relu_squared"
    if not traits.gated:
        return f"plain_ffn(g, layer, h_TD, {act})"
    return "gated_ffn(g, layer, h_TD)" if act == "Builder.silu" else f"gated_ffn(g, layer, h_TD, {act})"


def _attention(traits: Traits, names: dict[str, set[str]], pairs: str) -> str:
    table = "table: Node, " if traits.rope else ""
    lines = [
        f"def attention(g: Builder, config: Config, layer: Layer, {table}x_TD: Node) -> Node:",
        '    """Grouped-query attention before its output projection, [T, N * H]."""',
        "    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)",
    ]
    if traits.head_norms:
        names["graphml_models._attention"].add("norm_heads")
        lines.append("    q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)")
    if traits.rope:
        names["graphml_models._attention"].add("rotate")
        lines.append(
            f'    q_TNH, k_TKH = rotate(g, table, "{pairs}", q_TNH, k_TKH)  # pairs as {PAIRS[pairs]}'
        )
    more = ", window=config.windows[layer.index]" if traits.windows else ""
    more += ", softcap=config.attn_logit_softcapping" if traits.score_cap else ""
    more += ", max_bias=8.0" if traits.alibi else ""
    lines.append(f"    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale{more})")
    return "\n".join(lines)


def _sample(
    traits: Traits, keys: Mapping[str, object], tied: bool, biases: bool, names: dict[str, set[str]]
) -> str:
    """A tiny model that keeps special parameters: heads per key-value head, windows, rope, caps, factors."""
    heads, heads_kv = int(str(keys["attention.head_count"])), int(str(keys["attention.head_count_kv"]))
    n_kv = 4 if heads == heads_kv else 1 if heads_kv == 1 else 2
    kept, n_layer = _tiny_keys(traits, keys)
    arguments = [f"n_head_kv={n_kv}"]
    if n_layer != 2:
        arguments.append(f"n_layer={n_layer}")
    if traits.experts:
        arguments.append("n_expert=4")
    layer = _layer(traits, names)
    if biases:
        arguments.append('biases=("attn_q", "attn_k", "attn_v")')
    for flag, name in ((tied, "tied"), (traits.norm == "layer_norm", "layer_norm")):
        arguments += [f"{name}=True"] if flag else []
    without = ([] if traits.gated or traits.experts else ['"ffn_gate.weight"']) + (
        ['"ffn_norm.weight"'] if traits.parallel else []
    )
    if without:
        arguments.append(f"without=({', '.join(without)},)")
    if layer:
        arguments.append(f"layer={layer}")
    if traits.learned_positions:
        arguments.append('top={"position_embd.weight": (128, 64)}')
    lines = [
        "def sample(name: str) -> list[SampleModel]:",
        '    """A tiny model for tests, with what is special here."""',
    ]
    if kept:
        names["graphml_models._samples"].add("Metadata")
        lines.append("    keys: Metadata = {")
        lines += [f'        "{key}": {value!r},' for key, value in kept.items()]
        lines.append("    }")
        arguments.append("metadata=keys")
    lines.append("    return [")
    lines.append("        transformer(")
    lines += [
        "            name,",
        *[f"            {argument}," for argument in arguments],
        "        )",
        "    ]",
    ]
    return "\n".join(lines)


def _tiny_keys(traits: Traits, keys: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """The metadata of the sample that are no plain sizes, and the number of layers for its pattern."""
    kept = {key: value for key, value in keys.items() if _kept(key, traits)}
    pattern, n_layer = kept.get("attention.sliding_window_pattern"), 2
    if isinstance(pattern, list):  # up to the first layer of the other kind
        other = 1 - pattern[0]
        n_layer = max(2, pattern.index(other) + 1 if other in pattern else 2)
        kept["attention.sliding_window_pattern"] = pattern[:n_layer]
    elif isinstance(pattern, int):
        n_layer = max(2, pattern)
    if traits.windows:
        kept["attention.sliding_window"] = 11
    if "rope.dimension_count" in kept:
        part = int(str(keys["rope.dimension_count"])) / int(str(keys["attention.key_length"]))
        kept["rope.dimension_count"] = min(16, max(2, round(16 * part / 2) * 2))
    if "rope.scaling.original_context_length" in kept:
        kept["rope.scaling.original_context_length"] = 32
    return kept, n_layer


def _kept(key: str, traits: Traits) -> bool:
    if key.startswith("rope."):
        return traits.rope
    if key in ("expert_weights_norm", "expert_weights_scale"):
        return traits.shared_experts or traits.sigmoid_experts
    if key.startswith("attention.sliding_window"):
        return traits.windows
    return key in ("embedding_scale", "residual_scale", "logit_scale", "attn_logit_softcapping",
                   "final_logit_softcapping")  # fmt: skip


def _layer(traits: Traits, names: dict[str, set[str]]) -> str:
    parts = []
    for wanted, name in ((traits.head_norms, "HEAD_NORMS"), (traits.post_norms, "POST_NORMS")):
        if wanted:
            names["graphml_models._samples"].add(name)
            parts.append(f"**{name}")
    if traits.experts and traits.shared_experts:
        names["graphml_models._samples"].add("shared_expert")
        parts.append("**shared_expert()")
    if traits.parallel is False and traits.norm == "layer_norm":
        parts += ['"attn_norm.bias": (64,)', '"ffn_norm.bias": (64,)']
    return "{" + ", ".join(parts) + "}" if parts else ""
