"""The picture of docs/samplers.md: what each sampler does to one distribution.

`python -m tests.sampling_picture` draws it anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graphml.sampling import PeekableRandom, SamplingParams, make_sampler
from graphml.sampling.candidates.candidates import Floats

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "samplers.png"
SIZE = 24
HISTORY = [0, 3, 1, 5, 0, 3]
"""What the penalties and DRY look at: 0 and 3 stand twice, and 1 has followed them."""
PANELS: list[tuple[str, dict[str, Any]]] = [
    ("temperature 0.5", {"temperature": 0.5}),
    ("temperature 2", {"temperature": 2.0}),
    ("dynamic temperature 1 ± 0.9", {"dynatemp_range": 0.9}),
    ("top-k 6", {"top_k": 6}),
    ("top-p 0.8", {"top_p": 0.8}),
    ("min-p 0.15", {"min_p": 0.15}),
    ("typical 0.4", {"typical_p": 0.4}),
    ("epsilon 0.04", {"epsilon_cutoff": 0.04}),
    ("eta 0.1", {"eta_cutoff": 0.1}),
    ("top-n-sigma 1.7", {"top_n_sigma": 1.7}),
    ("XTC, threshold 0.1, where it fires", {"xtc_probability": 1.0, "xtc_threshold": 0.1}),
    ("penalties: repeat 1.5, frequency 0.3", {"repeat_penalty": 1.5, "frequency_penalty": 0.3}),
    ("DRY, multiplier 2", {"dry_multiplier": 2.0, "dry_sequence_breakers": ()}),
    ("logit bias: 9 +2, 0 forbidden", {"logit_bias": {9: 2.0, 0: -np.inf}}),
    ("Mirostat 1, tau 2.2", {"mirostat": 1, "mirostat_tau": 2.2}),
    ("Mirostat 2, tau 2.2", {"mirostat": 2, "mirostat_tau": 2.2}),
    ("adaptive-p, target 0.1", {"adaptive_target": 0.1}),
    ("own function: even ids only", {"function": lambda ids, x, _: np.where(ids % 2, -np.inf, x)}),
]


def logits() -> Floats:
    """Falling as Zipf's law has it, and not quite."""
    noise = np.random.default_rng(5).standard_normal(SIZE) * 0.25
    return np.sort(2.0 - 1.2 * np.log(np.arange(1, SIZE + 1)) + noise)[::-1].astype(np.float32)


def probabilities(fields: dict[str, Any]) -> Any:
    """Of all tokens, float64 [SIZE]."""
    sampler = make_sampler(SamplingParams(**{"temperature": 1.0, **fields}))
    ids, chances = sampler.distribution(logits(), HISTORY, PeekableRandom(1))
    found = np.zeros(SIZE)
    found[ids] = chances
    return found


def main() -> None:
    import matplotlib.pyplot as plt

    columns = 3
    figure, axes = plt.subplots(
        len(PANELS) // columns, columns, figsize=(10, 11), sharex=True, sharey=True, layout="constrained"
    )
    before = probabilities({})
    for axis, (title, fields) in zip(axes.flat, PANELS, strict=True):
        axis.bar(range(SIZE), before, width=0.9, color="#d3d7de", label="before")
        axis.bar(range(SIZE), probabilities(fields), width=0.5, color="#2b6cb0", label="after")
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("token, the most likely first", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("probability", fontsize=8)
    axes[0, 0].legend(fontsize=8, frameon=False)
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    main()
