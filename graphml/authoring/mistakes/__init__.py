"""The catalogue of common mistakes in an architecture: a small edit of the graph corrects each.

One file per part of a model, each with `MISTAKES`. Knows graphs, metadata and names of tensors; nothing of
how an edited graph is judged.
"""

from __future__ import annotations

from graphml.authoring.mistakes import (
    attention,
    copied,
    ends,
    experts,
    feed_forward,
    norm_sides,
    norms,
    order,
    other_layers,
    position,
    residual,
    tensors,
)
from graphml.authoring.mistakes.edit import EditSource, Mistake, Try, applied

# Of equally good edits the earlier one is reported: mistakes shown by an unused tensor come first.
CATALOGUE: tuple[Mistake, ...] = (
    *copied.MISTAKES,
    *tensors.MISTAKES,
    *norms.MISTAKES,
    *position.MISTAKES,
    *attention.MISTAKES,
    *order.MISTAKES,
    *norm_sides.MISTAKES,
    *other_layers.MISTAKES,
    *residual.MISTAKES,
    *feed_forward.MISTAKES,
    *experts.MISTAKES,
    *ends.MISTAKES,
)

__all__ = ["CATALOGUE", "EditSource", "Mistake", "Try", "applied"]
