"""Top-k outputs beside the logits, so that whole rows need not be copied from the device.

Knows nodes; `graphml.sampling` chooses tokens among the top k.
"""

from __future__ import annotations

from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.sampling import SETTINGS, sample_row, sample_token
from graphml.ir.shape import fixed

TOP_K = 64
"""How many ids of a row are returned: as many as samplers usually keep, and few enough to copy quickly."""
TOP_K_IDS, TOP_K_LOGITS, OF_ROW, SAMPLED = "top_k_ids", "top_k_logits", "of_row", "sampled"
SAMPLING_SETTINGS = "sampling_settings"
"""The input with the settings by which `SAMPLED` is sampled; zeros: always the id with the highest logit."""


def candidates(g: Builder, logits: Node) -> dict[str, Node]:
    """Further outputs of a graph whose logits are f32 [O, n_vocab].

    top_k_ids i32 [O, k] and top_k_logits f32 [O, k]: the largest first, equals by id; of_row f32 [O, 4]: the
    logarithm of the row's sum and the id sampled from the whole row (`graphml.ir.ops.sampling.OF_ROW`);
    sampled i32 [O]: an id sampled by `sampling_settings` (f32 [O, 5], `graphml.ir.ops.sampling.SETTINGS`).
    """
    with g.scope("candidates"):
        ids = g.top_k(logits, min(TOP_K, fixed(logits.shape[-1])), name=TOP_K_IDS)
        top_logits = g.gather(logits, ids, name=TOP_K_LOGITS)
        settings = g.input(SAMPLING_SETTINGS, F32, (logits.shape[0], len(SETTINGS)))
        of_row = g.call(sample_row, logits, top_logits, settings, name=OF_ROW)
        sampled = g.call(sample_token, ids, top_logits, of_row, settings, name=SAMPLED)
    return {TOP_K_IDS: ids, TOP_K_LOGITS: top_logits, OF_ROW: of_row, SAMPLED: sampled}
