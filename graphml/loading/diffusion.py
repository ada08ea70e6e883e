"""What a file says of a diffusion model: the mask token, and which row of the logits is of which token.

Knows metadata and architectures; nothing of schedules, samplers or texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.errors import WeightsError
from graphml.loading.architecture import Architecture
from graphml.weights import ModelFile

MASK, SHIFTS = "tokenizer.ggml.mask_token_id", "diffusion.shift_logits"


@dataclass(frozen=True)
class Diffusion:
    """How a diffusion model's answer is denoised.

    mask: the id of open positions. shifts: the logits of a position are in the row before its own. block: the
    length of the blocks in which answers are denoised by default; 0: the whole answer at once.
    """

    mask: int
    shifts: bool
    block: int


def shifts_logits(file: ModelFile) -> bool:
    """Whether the file says that logits are shifted; those that say nothing are, as in llama.cpp."""
    return file.metadata.boolean(SHIFTS, True)


def read_diffusion(file: ModelFile, architecture: Architecture, n_vocab: int) -> Diffusion | None:
    """What the file says; None for a model that is no diffusion model; WeightsError without a mask token."""
    if architecture.diffusion is None:
        return None
    mask = file.metadata.integer(MASK, -1)
    if not 0 <= mask < n_vocab:
        stated = f"got {mask}" if file.metadata.has(MASK) else "there is none"
        raise WeightsError(
            f"{file.path}: {MASK}: wanted the id, below {n_vocab}, of the mask token, which a diffusion "
            f"model's answer begins as; {stated}"
        )
    return Diffusion(mask, shifts_logits(file), architecture.diffusion)
