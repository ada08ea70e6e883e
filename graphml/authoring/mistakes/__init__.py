"""The catalogue of usual mistakes in an architecture: each is undone by a small edit of the graph.

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
    position,
    residual,
    tensors,
)
from graphml.authoring.mistakes.edit import Mistake, Model, Try, applied

# Of edits that do as well, the earlier is named: what is told by a tensor that goes unused comes first.
CATALOGUE: tuple[Mistake, ...] = (
    *copied.MISTAKES,
    *tensors.MISTAKES,
    *norms.MISTAKES,
    *position.MISTAKES,
    *attention.MISTAKES,
    *order.MISTAKES,
    *norm_sides.MISTAKES,
    *residual.MISTAKES,
    *feed_forward.MISTAKES,
    *experts.MISTAKES,
    *ends.MISTAKES,
)

__all__ = ["CATALOGUE", "Mistake", "Model", "Try", "applied"]
