"""The counts of an engine as one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """Counts of an engine. blocks_used: held by running sequences; blocks_shared: by several of them.

    blocks_free: all others; blocks_kept: those of them whose content can still be found; blocks_evicted: how
    often such a content was given up. hit_tokens: ids of prompts found in blocks so far. n_steps: so far;
    step_s: seconds of the latest; step_p50_s, rows_per_step: median seconds and mean rows of the latest 256.
    n_drafts, n_drafted, n_accepted: drafts so far, their tokens, and those of them that were right.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_shared: int
    blocks_free: int
    blocks_kept: int
    blocks_evicted: int
    hit_tokens: int
    n_preempted: int
    n_steps: int
    step_s: float
    step_p50_s: float
    rows_per_step: float
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
