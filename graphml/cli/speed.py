"""The line about an answer's speed that `run` and `chat` print."""

from __future__ import annotations

from graphml.api.stats import Stats


def speed(stats: Stats) -> str:
    """Return the figures of a generation as a line to read."""
    prompt = f"prompt {stats.n_prompt} tokens, {stats.prefill_tps:.1f}/s; " if stats.n_prompt else ""
    first = f"; {stats.ttft_s:.2f} s to the first" if stats.n_gen else ""
    drafts = f"; {stats.n_accepted} of {stats.n_drafted} drafted tokens right" if stats.n_drafted else ""
    return f"{prompt}answer {stats.n_gen} tokens, {stats.gen_tps:.1f}/s{first}{drafts}"
