"""The line about an answer's speed."""

from __future__ import annotations

from graphml.api.stats import Stats
from graphml.cli.terminal.shown_answer import speed


def test_drafts_are_told_where_there_were_any() -> None:
    plain = Stats(n_gen=20, gen_tps=50.0, ttft_s=0.5)
    assert speed(plain) == "answer 20 tokens, 50.0/s; 0.50 s to the first"
    drafted = Stats(n_gen=20, gen_tps=50.0, ttft_s=0.5, n_drafted=12, n_accepted=9)
    assert speed(drafted) == speed(plain) + "; 9 of 12 drafted tokens right"
