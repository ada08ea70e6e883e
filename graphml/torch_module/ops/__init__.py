"""The ops of the language in PyTorch, one file a family, as `graphml.ir.ops` has them in NumPy.

Each file has `MEANINGS`: the name of an op -> what it computes. `table()` finds the files by itself. Knows
tensors and attributes; nothing of graphs or models.

A meaning takes tensors and attributes and returns a tensor of its inputs' floating type. That of an op with a
state returns its value and the changed state, and changes nothing in place, so that gradients go through
states. Of what is discrete (indices, comparisons, formats of blocks) there is no gradient.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphml.errors import GraphError
from graphml.ir.op import Attributes

Meaning = Callable[[Sequence[Any], Attributes], Any]


@functools.cache
def table() -> Mapping[str, Meaning]:
    """Name -> meaning of every plain op but the leaves."""
    by_name: dict[str, Meaning] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        for name, meaning in importlib.import_module(entry.name).MEANINGS.items():
            if by_name.setdefault(name, meaning) is not meaning:
                raise GraphError(f"two meanings in PyTorch of the op {name!r}")
    return by_name
