"""Top-k outputs beside the logits, so that whole rows need not be copied from the device.

Knows nodes; `graphml.sampling` chooses tokens among the top k.
"""

from __future__ import annotations

from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.sampling import SETTINGS, draw, draw_of_row
from graphml.ir.shape import fixed

N_BEST = 64
"""How many ids of a row are returned: as many as samplers usually keep, and few enough to copy quickly."""
BEST_IDS, BEST_LOGITS, OF_ROW, DRAWN = "best_ids", "best_logits", "of_row", "drawn"
DRAW_SETTINGS = "draw_settings"
"""The input with the settings by which `DRAWN` is sampled; zeros: always the id with the highest logit."""


def candidates(g: Builder, logits: Node) -> dict[str, Node]:
    """Further outputs of a graph whose logits are f32 [O, n_vocab].

    best_ids i32 [O, k] and best_logits f32 [O, k]: the largest first, equals by id; of_row f32 [O, 4]: the
    logarithm of the row's sum and the id sampled from the whole row (`graphml.ir.ops.sampling.OF_ROW`); drawn
    i32 [O]: an id sampled by `draw_settings` (f32 [O, 5], see `graphml.ir.ops.sampling.SETTINGS`).
    """
    with g.scope("candidates"):
        ids = g.top_k(logits, min(N_BEST, fixed(logits.shape[-1])), name=BEST_IDS)
        best = g.gather(logits, ids, name=BEST_LOGITS)
        settings = g.input(DRAW_SETTINGS, F32, (logits.shape[0], len(SETTINGS)))
        of_row = g.make(draw_of_row, logits, best, settings, name=OF_ROW)
        drawn = g.make(draw, ids, best, of_row, settings, name=DRAWN)
    return {BEST_IDS: ids, BEST_LOGITS: best, OF_ROW: of_row, DRAWN: drawn}
