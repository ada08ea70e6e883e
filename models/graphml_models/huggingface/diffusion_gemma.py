"""DiffusionGemma: `DiffusionGemmaForBlockDiffusion`, which is not read."""

from __future__ import annotations

from collections.abc import Mapping

REFUSED: Mapping[str, str] = {
    "diffusion_gemma_text": (
        "a step of DiffusionGemma reads the keys and values of the text before it, which the same layers "
        "have kept in a causal pass, and embeddings mixed by the probabilities of the step before; steps of "
        "diffusion models here read ids alone (docs/diffusion.md)"
    )
}
