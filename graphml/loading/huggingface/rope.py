"""Rope of a config.json as GGUF's keys and factors: default, dynamic, linear, llama3, yarn, longrope.

Transformers 5 writes `rope_parameters`, transformers 4 `rope_theta`, `rope_scaling`, `partial_rotary_factor`
or `rotary_pct`. Formulas: `transformers.modeling_rope_utils`; Peng et al. 2023 (arXiv:2309.00071) for yarn,
Ding et al. 2024 (arXiv:2402.13753) for longrope. Knows fields and numbers; nothing of graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value

LAYER_KINDS = ("full_attention", "sliding_attention")
PART, PART_OF_ROPE = "partial_rotary_factor", "rope_parameters.partial_rotary_factor"
"""Every config takes the former over into its rope; the latter is recorded of classes that rotate by it."""
ORIGINAL = "original_max_position_embeddings"
_LONG = ("factor", "attention_factor", "short_factor", "long_factor", ORIGINAL)
_MSCALES = ("mscale", "mscale_all_dim")
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "default": ("factor",), "mrope": (), "dynamic": ("factor",), "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "truncate", ORIGINAL, *_MSCALES),
    "longrope": _LONG, "su": _LONG,
}  # fmt: skip
"""By type the parameters that it reads; it is given no others. The first and the third change no text."""
OF_ALL = ("type", "mrope_section", "mrope_interleaved", "interleaved", ORIGINAL)
"""Parameters that any type may have: of a text all axes have one position."""
_OF_SOME = frozenset(name for names in PARAMETERS.values() for name in names)
OF_OTHER_TYPES = (_OF_SOME - set(_MSCALES)) | {"finetuned"}
"""Parameters that transformers reads of other types alone, and yarn's `finetuned`, which it never does."""
Fields = dict[str, Any]
KNOWN = frozenset(("rope_type", "rope_theta", PART, *LAYER_KINDS, *OF_ALL, *_OF_SOME))
"""Parameters of ropes that `rope_keys` reads."""


def rope_keys(
    config: HfConfig, keys: Mapping[str, Value], base: float = 10000.0, known: Sequence[str] = ()
) -> dict[str, Value]:
    """The keys under `rope.`; tensors of factors are added to the config.

    base: where no field says it; known: parameters that the family reads itself.
    """
    full, local = _parameters(config, base)
    full = {name: value for name, value in full.items() if name not in known}
    head_dim = int(str(keys["attention.key_length"]))
    for parameters in (full, local or {}):
        _drop_unread_part(config, parameters)
    part = full.pop(PART, None)
    factor = 1.0 if part is None else config.checked_number(PART, part)
    if not 0 <= factor <= 1:
        raise config.error(f"{PART}: wanted a number from 0 to 1; got {factor}")
    n_rot = int(head_dim * factor)
    theta = config.checked_number("rope_theta", full.pop("rope_theta", base))
    rope_values: dict[str, Value] = {"rope.dimension_count": n_rot, "rope.freq_base": theta}
    by_kind = any(kind in stated_rope(config) for kind in LAYER_KINDS)
    rope_values |= scaled_rope(config, full, n_rot, theta, int(str(keys["context_length"])), by_kind)
    if local is not None:
        rope_values["rope.freq_base_swa"] = config.checked_number(
            "rope_theta of sliding_attention", local.pop("rope_theta", None)
        )
        if local.pop("rope_type", "default") != "default" or local:
            raise config.error(f"rope of sliding_attention: wanted none but a base; got {str(local)[:80]}")
    return rope_values


def turned_back(config: HfConfig, keys: Mapping[str, Value]) -> None:
    """Have pairs turn the other way: what divides the frequencies is below 0."""
    factors = np.ones(int(str(keys["rope.dimension_count"])) // 2, np.float32)
    config.tensors["rope_freqs.weight"] = -config.tensors.get("rope_freqs.weight", factors)


def _drop_unread_part(config: HfConfig, parameters: Fields) -> None:
    """Take out the part of heads that rotate, of a class whose rope turns all of them whatever it says.

    A scaling of transformers' own is computed for the part alone, which such a class cannot apply.
    """
    if config.is_read(PART_OF_ROPE):
        return
    part = parameters.pop(PART, None)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if part not in (None, 1) and kind != "default":
        raise config.error(
            f"{PART} is {str(part)[:20]} beside rope_type {str(kind)[:40]!r}: the class rotates whole heads"
        )


ROUNDED, OF_YARN = "rope.scaling.rounded", "rope.scaling.rounded_yarn"
"""Keys of yarn with exact bounds: whether they are rounded, False, and the numbers in the order of `YARN`."""
YARN = ("factor", "original_context_length", "attn_factor", "yarn_beta_fast", "yarn_beta_slow")
STILL = 1e30  # what divides the frequency of a pair that does not turn


def ropes_by_kind(
    config: HfConfig,
    keys: Mapping[str, Value],
    assumed: Mapping[str, Fields],
    part: float = 1.0,
    widths: tuple[int, int] | None = None,
) -> dict[str, Value]:
    """The keys under `rope.` of a class that reads the `rope_parameters` of two kinds of layers alone.

    Layers that see all may have linear or yarn; those with a window turn parts of heads of their own. Of what
    is beside the two kinds only a part of heads counts, for a kind that has none.
    assumed: the parameters by kind where there are none; part: of heads that rotate, where no field says it;
    widths: of heads of the two kinds, where they differ.
    """
    config.only("rope_scaling")
    stated = config.get("rope_parameters")
    if stated is None:
        stated = assumed
    if not isinstance(stated, dict) or any(not isinstance(stated.get(kind), dict) for kind in LAYER_KINDS):
        raise config.error(f"rope_parameters: wanted those of {' and of '.join(LAYER_KINDS)}")
    beside = config.stated(PART)
    part = part if beside is None else beside
    rope_values: dict[str, Value] = {}
    width = int(str(keys["attention.key_length"]))
    for kind, suffix, of_head in zip(LAYER_KINDS, ("", "_swa"), widths or (width, width), strict=True):
        scaling = dict(stated[kind])
        factor = config.checked_number(PART, scaling.pop(PART, part))
        turning = int(of_head * factor)
        is_whole = scaling.get("rope_type") == "proportional" and not suffix
        n_rot = of_head if is_whole else turning
        if not 0 < factor <= 1 or n_rot < 2 or n_rot % 2:
            raise config.error(f"{PART} of {kind}: wanted pairs of dimensions; got {factor}")
        base = config.checked_number(f"rope_theta of {kind}", scaling.pop("rope_theta", None))
        if base <= 0:
            raise config.error(f"rope_theta of {kind}: wanted a number above 0; got {base}")
        if is_whole:
            scaling.pop("rope_type")
        scaled = scaled_rope(config, scaling, n_rot, base, int(str(keys["context_length"])), by_kind=True)
        still = {"rope_freqs.weight"} if "rope_freqs.weight" in config.tensors and suffix else set()
        if set(config.tensors) - still or (scaled and suffix):
            raise config.error(
                f"rope of {kind}: this architecture knows rope_type default here, and linear "
                f"and yarn with rounded bounds in {LAYER_KINDS[0]}"
            )
        if is_whole:
            factors = np.where(np.arange(n_rot // 2) < turning // 2, 1.0, STILL)
            config.tensors["rope_freqs.weight"] = factors.astype(np.float32)
        rope_values |= {f"rope.dimension_count{suffix}": n_rot, f"rope.freq_base{suffix}": base, **scaled}
    return rope_values


def stated_rope(config: HfConfig) -> Fields:
    """`rope_scaling`, else `rope_parameters`, as transformers 5 has it.

    Of parameters by kinds of layers the former changes those of layers that see all.
    """
    scaling, parameters = (config.get(name) for name in ("rope_scaling", "rope_parameters"))
    scaling, parameters = (dict(of) if isinstance(of, dict) else {} for of in (scaling, parameters))
    whole = LAYER_KINDS[0]
    if scaling and any(kind in parameters for kind in LAYER_KINDS):
        return {**parameters, whole: {**(parameters.get(whole) or {}), **scaling}}
    return scaling or parameters


def required_rope(config: HfConfig) -> Fields:
    """`stated_rope`, refused where there is none, of a class that then assumes a scaling."""
    rope = stated_rope(config)
    if not rope:
        raise config.error(
            "rope_parameters: wanted the model's own: without them the class assumes a scaling"
        )
    return rope


def _parameters(config: HfConfig, base: float) -> tuple[Fields, Fields | None]:
    """The parameters of layers that see all, and those of layers with a window where they have their own."""
    parameters = stated_rope(config)
    part = config.get(PART, "rotary_pct")
    top = {
        "rope_theta": config.get("rope_theta", "rotary_emb_base", "rope_base"),
        PART: config.stated(PART) if part is None else part,  # which every config takes over into its rope
    }
    top = {name: value for name, value in top.items() if value is not None}
    local_base = config.get("rope_local_base_freq")
    if any(kind in parameters for kind in LAYER_KINDS):
        if set(parameters) - set(LAYER_KINDS):
            raise config.error(f"rope_parameters: wanted {LAYER_KINDS} alone; got {sorted(parameters)}")
        near = {} if local_base is None else {"rope_theta": local_base}
        full, local = (parameters.get(kind) or {} for kind in LAYER_KINDS)
        if not isinstance(full, dict) or not isinstance(local, dict):
            raise config.error(f"rope_parameters: wanted objects; got {str(parameters)[:80]}")
        return {**top, **full}, {**near, **local}
    _check_replaced(config, {"rope_theta": base, PART: 1.0, **top, **parameters})
    return {**top, **parameters}, None if local_base is None else {"rope_theta": local_base}


def _check_replaced(config: HfConfig, used: Fields) -> None:
    """Refuse a `rope_scaling` that lacks what the `rope_parameters` say of the base, which it replaces."""
    replaced = config.get("rope_parameters")
    for name in ("rope_theta", PART):
        if isinstance(replaced, dict) and replaced.get(name, used[name]) != used[name]:
            raise config.error(
                f"rope_scaling takes the place of rope_parameters, whose {name} = {str(replaced[name])[:20]} "
                f"would become {used[name]}: wanted {name} in rope_scaling, too"
            )


def scaled_rope(
    config: HfConfig, scaling: Fields, n_rot: int, base: float, n_ctx: int, by_kind: bool = False
) -> dict[str, Value]:
    """The keys of a scaling; a parameter that is left over is refused. Its fields are taken out.

    by_kind: whether the config has ropes by kinds of layers.
    """
    kind = str(scaling.pop("rope_type", None) or scaling.get("type") or "default")
    if kind not in PARAMETERS:
        raise config.error(f"rope_type {kind[:40]!r}: known are {', '.join(PARAMETERS)}")
    original = _original(config, scaling, kind, n_ctx, by_kind)
    own = {name: scaling[name] for name in PARAMETERS[kind] if name in scaling}
    for name in (*PARAMETERS[kind], *OF_ALL):
        scaling.pop(name, None)
    keys: dict[str, Value] = {}
    if kind in ("linear", "llama3", "yarn"):
        factor = config.checked_number("rope factor", own.get("factor"))
        if factor <= 0:
            raise config.error(f"rope factor: wanted a number above 0; got {factor}")
    if kind == "linear":
        keys = {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    elif kind == "llama3":
        low = config.checked_number("low_freq_factor", own.get("low_freq_factor"))
        high = config.checked_number("high_freq_factor", own.get("high_freq_factor"))
        if low < 0 or high < 0:
            raise config.error(
                f"low_freq_factor, high_freq_factor: wanted numbers from 0 up; got {low}, {high}"
            )
        config.tensors["rope_freqs.weight"] = _llama3(n_rot, base, factor, low, high, original)
    elif kind == "yarn":
        keys = _yarn(config, own, factor, original)
        if not own.get("truncate", True):
            keys = _exact_yarn(config, keys, n_rot, base)
    elif kind in ("longrope", "su"):
        keys = _longrope(config, own, n_rot, n_ctx, original)
    unread = OF_OTHER_TYPES if config.is_known else frozenset()
    left = {name: value for name, value in scaling.items() if value is not None and name not in unread}
    if left:
        raise config.error(
            f"rope of type {kind[:40]!r}: parameters that are not understood: {str(left)[:120]}"
        )
    return keys


def _original(config: HfConfig, scaling: Fields, kind: str, n_ctx: int, by_kind: bool) -> int:
    """The context before the scaling, which transformers reads beside the rope before it reads it inside.

    Not where there are ropes by kinds of layers; with LongRoPE the class reads both places, for two things,
    and authors' own code may read either.
    """
    inner, outer = scaling.get(ORIGINAL), config.stated(ORIGINAL)
    if ORIGINAL not in PARAMETERS[kind] or by_kind:
        outer = None
    ambiguous = kind in ("longrope", "su") or not config.is_known
    if ambiguous and None not in (inner, outer) and inner != outer:
        got = f"{str(inner)[:20]} in the rope, {str(outer)[:20]} beside it"
        raise config.error(f"{ORIGINAL}: wanted one number; got {got}")
    stated = next((value for value in (outer, inner) if value is not None), n_ctx)
    original = int(config.checked_number(ORIGINAL, stated))
    if original < 1:
        raise config.error(f"{ORIGINAL}: wanted a number above 0; got {original}")
    return original


def _llama3(n_rot: int, base: float, factor: float, low: float, high: float, original: int) -> Any:
    """What llama 3 divides each frequency by, [n_rot / 2]: 1 for the fast, `factor` for the slow ones."""
    frequency = base ** (-np.arange(0, n_rot, 2) / n_rot)
    turns = original * frequency / (2 * math.pi)  # in the original context
    smooth = np.clip((turns - low) / (high - low or 1e-30), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def _yarn(config: HfConfig, scaling: Fields, factor: float, original: int) -> dict[str, Value]:
    """GGUF's factor of the rotated heads is beside the one that ggml itself computes."""
    own, scale = 0.1 * math.log(factor) + 1.0, max(math.log(factor), 0.0)  # the class's is never below 1
    if own <= 0:
        raise config.error(f"rope factor: wanted a number above exp(-10); got {factor}")
    stated, mscale, all_dim = (scaling.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    wanted = 0.1 * scale + 1.0
    if stated is not None:
        wanted = config.checked_number("attention_factor", stated)
    elif mscale and all_dim:
        wanted = (0.1 * mscale * scale + 1.0) / (0.1 * all_dim * scale + 1.0)
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": wanted / own,
        "rope.scaling.yarn_beta_fast": config.checked_number("beta_fast", scaling.get("beta_fast") or 32.0),
        "rope.scaling.yarn_beta_slow": config.checked_number("beta_slow", scaling.get("beta_slow") or 1.0),
    }


def _exact_yarn(config: HfConfig, yarn: dict[str, Value], n_rot: int, base: float) -> dict[str, Value]:
    """Yarn whose bounds are not rounded, as gpt-oss has it: what divides each frequency, [n_rot / 2].

    The numbers of the yarn with rounded bounds are beside it: GGUF knows no other.
    """
    numbers = [float(str(yarn[f"rope.scaling.{name}"])) for name in YARN]
    factor, original, own, fast, slow = numbers
    low, high = (
        n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow)
    )
    low, high = max(low, 0.0), min(high, n_rot - 1.0)
    slowed = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    config.tensors["rope_freqs.weight"] = (1.0 / (slowed / factor + 1.0 - slowed)).astype(np.float32)
    return {
        "rope.scaling.attn_factor": own * (0.1 * math.log(factor) + 1.0),
        ROUNDED: False,
        OF_YARN: numbers,
    }


def _longrope(config: HfConfig, scaling: Fields, n_rot: int, n_ctx: int, original: int) -> dict[str, Value]:
    for name in ("short", "long"):
        factors = scaling.get(f"{name}_factor")
        if not isinstance(factors, list) or len(factors) != n_rot // 2:
            raise config.error(f"{name}_factor: wanted {n_rot // 2} numbers; got {str(factors)[:60]}")
        checked = [config.checked_number(f"{name}_factor", factor) for factor in factors]
        config.tensors[f"rope_factors_{name}.weight"] = np.array(checked, np.float32)
    factor = scaling.get("factor") or n_ctx / original
    wanted = scaling.get("attention_factor")
    if wanted is None:
        wanted = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.by_text": True,  # which factors: GGUF's are chosen by the context, see `_rope`
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": config.checked_number("attention_factor", wanted),
    }
