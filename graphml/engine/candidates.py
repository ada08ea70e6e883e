"""Outputs beside the logits: of each row the best ids, so that a device need not give the whole row away.

Knows nodes; how tokens are chosen among them stands in `graphml.generate.sampling`.
"""

from __future__ import annotations

from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.reduce import log_sum_exp
from graphml.ir.ops.sampling import SETTINGS, draw
from graphml.ir.shape import fixed

N_BEST = 64
"""How many ids of a row are given: as many as samplers usually keep, few enough to be read in no time."""
BEST_IDS, BEST_LOGITS, LOG_SUM, DRAWN = "best_ids", "best_logits", "log_sum", "drawn"
DRAW_SETTINGS = "draw_settings"
"""The input that says how `DRAWN` is drawn; zeros: the best id, always."""


def candidates(g: Builder, logits: Node) -> dict[str, Node]:
    """Further outputs of a graph whose logits are f32 [O, n_vocab].

    best_ids i32 [O, k] and best_logits f32 [O, k]: the largest first, equals by id; log_sum f32 [O, 1]: the
    logarithm of the sum of exp(logits); drawn i32 [O]: an id drawn among the best as `draw_settings` says
    (f32 [O, 5], see `graphml.ir.ops.sampling.SETTINGS`).
    """
    with g.scope("candidates"):
        ids = g.top_k(logits, min(N_BEST, fixed(logits.shape[-1])), name=BEST_IDS)
        best = g.gather(logits, ids, name=BEST_LOGITS)
        log_sum = g.make(log_sum_exp, logits, name=LOG_SUM)
        settings = g.input(DRAW_SETTINGS, F32, (logits.shape[0], len(SETTINGS)))
        drawn = g.make(draw, ids, best, log_sum, settings, name=DRAWN)
    return {BEST_IDS: ids, BEST_LOGITS: best, LOG_SUM: log_sum, DRAWN: drawn}
