"""Tables of positions that a module computes: sines and cosines, found by their values.

Knows values of positions; nothing of layers.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.expressions import View
from graphml.authoring.importing.region import run, same
from graphml.authoring.importing.walked import Walked
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.sinusoids import sinusoids

ROWS = 64  # positions that are looked at
FIRSTS = (0, 1, 2, 3)  # positions of the first row


def position_table(walk: Walked, node: TracedNode, name: str) -> View | None:
    """The value of a node of positions alone, [.., T, D]; None where it is no such table.

    The table of a folder follows from its config.json; a plain module has none.
    """
    known = walk.dependence.description.nodes.get(name)
    shape = () if known is None else tuple(size for size in known.shape or () if size != 1)
    if (
        not walk.dependence.description.config
        or not walk.dependence.is_positions(name)
        or len(shape) != 2
        or not isinstance(shape[0], str)
        or not isinstance(shape[1], int)
    ):
        return None
    try:
        values = np.asarray(run(walk.dependence, {}, name, ROWS)).reshape(ROWS, shape[1])
    except ArchitectureError:
        return None  # of fewer positions
    for first, last_slowest, cosines_first in product(FIRSTS, (False, True), (False, True)):
        if same(values, sinusoids(ROWS, shape[1], first, last_slowest, cosines_first), 1e-5):
            numbers = {"first": first, "last_slowest": last_slowest, "cosines_first": cosines_first}
            of = walk.dependence.description.nodes[name]
            return walk.made(of, "sinusoids", (), (shape[1],), numbers=numbers)
    return None
