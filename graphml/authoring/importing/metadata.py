"""The metadata of an imported model as traced: sizes, epsilon, rope. Knows expressions and GGUF's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.writing import Writer
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.config import HfConfig
from graphml.loading.huggingface.rope import rope_keys

Array = NDArray[np.float32]
DEFAULT_CONTEXT = 4096


def traced_keys(writer: Writer) -> dict[str, Any]:
    """GGUF's keys without the architecture's prefix."""
    layered, (heads, kv, width) = writer.found, writer.sizes
    everywhere = [*layered.before, *(expr for layer in layered.layers for expr in layer)]
    tables = [expr for expr in everywhere if expr.op == "position_rows"]
    length = writer.description.length
    keys: dict[str, Any] = {
        "context_length": min(
            [expr.weights["weight"].shape[0] for expr in tables], default=max(DEFAULT_CONTEXT, length + 16)
        ),
        "vocab_size": layered.result.shape[-1],
        "embedding_length": layered.stream.shape[-1],
        "block_count": len(layered.layers),
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": width,
        writer.eps_key: writer.eps,
    }
    for expr in writer.experts[:1]:
        router = expr.weights["router"]
        keys |= {"expert_count": router.shape[0], "expert_used_count": expr.numbers["used"]}
    keys |= {key: value for key, value in writer.fields.values.items() if value is not None}
    if writer.tables:
        first = _rope(writer, windowed=False)
        keys |= {"rope.dimension_count": first.numbers["n_rot"], "rope.freq_base": base(writer)}
        if first.numbers["magnitude"] != 1.0:
            keys["rope.scaling.attn_factor"] = first.numbers["magnitude"]
        if len(writer.tables) > 1:
            keys["rope.freq_base_swa"] = base(writer, windowed=True)
    return keys


def check_rope(writer: Writer) -> None:
    """ArchitectureError, with the rope's op and module, for settings in config.json that are not known."""
    if not writer.tables:
        return
    keys = {"attention.key_length": writer.sizes[2], "context_length": DEFAULT_CONTEXT}
    try:
        rope_keys(HfConfig(Path("config.json"), writer.description.config, {}), keys)
    except ArchitectureError as error:
        raise ArchitectureError(f"{_rope(writer, windowed=False).told}: {error}") from None


def _rope(writer: Writer, windowed: bool) -> Expression:
    """The rope of a layer with or without a window, if layers differ in that; else of any."""
    ropes = {
        bool(window): expr
        for layer, window in zip(writer.found.layers, writer.windows(), strict=True)
        for expr in layer
        if expr.op == "rope"
    }
    return ropes[windowed] if windowed in ropes else next(iter(ropes.values()))


def base(writer: Writer, windowed: bool = False) -> float:
    """The base of the rope: of the second pair's frequency if all follow from it, else 10000."""
    frequencies = np.array(_rope(writer, windowed).numbers["frequencies"])
    if len(frequencies) > 1:
        estimate = float(frequencies[1] ** -float(len(frequencies)))
        rounded = float(f"{estimate:.6g}")
        if np.allclose(rounded ** (-np.arange(len(frequencies)) / len(frequencies)), frequencies, rtol=1e-5):
            return rounded
    return 10000.0


def rope_factors(writer: Writer) -> Array | None:
    """What divides the frequencies of the base, [n_rot / 2]; None if nothing does."""
    if not writer.tables:
        return None
    frequencies = np.array(_rope(writer, windowed=False).numbers["frequencies"])
    plain = base(writer) ** (-np.arange(len(frequencies)) / len(frequencies))
    return None if np.allclose(plain, frequencies, rtol=1e-5) else (plain / frequencies).astype(np.float32)
