"""Tables of positions that follow from config.json: sines and cosines (arXiv:1706.03762).

Knows numbers; nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value


def sinusoids(
    count: int, width: int, first: int, last_slowest: bool, cosines_first: bool = False, base: float = 1e4
) -> NDArray[np.float64]:
    """[count, width]: sines in one half of the columns, cosines in the other.

    first: the position of the first row; last_slowest: whether the last frequency is 1 / base, as in
    fairseq's, and not the one behind it.
    """
    half = width // 2
    frequencies = base ** (-np.arange(half) / max(half - last_slowest, 1))
    angles = (first + np.arange(count))[:, None] * frequencies
    halves = [np.sin(angles), np.cos(angles)]
    return np.concatenate(halves[::-1] if cosines_first else halves, 1)


def add_sinusoids(
    config: HfConfig, keys: Mapping[str, Value], first: int, last_slowest: bool, cosines_first: bool = False
) -> None:
    """The tensor `position_embd.weight` of a context."""
    count, width = (int(str(keys[name])) for name in ("context_length", "embedding_length"))
    table = sinusoids(count, width, first, last_slowest, cosines_first)
    config.tensors["position_embd.weight"] = table.astype(np.float32)
