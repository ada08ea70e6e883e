"""The low-rank factors that are trained: which tensors have a pair, and their first values.

Knows names and shapes of a model's matrices; nothing of torch or of losses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from graphml.api.model import Model
from graphml.errors import UsageError, similar
from graphml.ir.op import Array
from graphml.passes.lora import Adapter, adaptable
from graphml.runtime.programs.model_graphs import ModelGraphs

Pairs = Mapping[str, tuple[Array, Array]]
TRAINED = "trained"
_OF_LAYER = re.compile(r"blk\.\d+\.(.+)\.weight")
_ROUTERS = ("ffn_gate_inp", "ffn_gate_inp_shexp")


def targets(model: Model, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The tensors that get a pair, with their shapes; UsageError for a name that none of them has.

    names: as attn_q, or the whole name of a tensor; none: all matrices of layers but routers and experts.
    """
    executor = model.executor
    graphs = ModelGraphs(executor.file, executor.graphs.architecture, executor.config, "f32", True)
    known = adaptable(graphs.build(2, 2))
    short = {
        name: match[1] if (match := _OF_LAYER.fullmatch(name)) else name.removesuffix(".weight")
        for name in known
    }
    if not names:
        return {
            name: shape
            for name, shape in known.items()
            if _OF_LAYER.fullmatch(name) and len(shape) == 2 and short[name] not in _ROUTERS
        }
    for name in names:
        if name not in known and name not in short.values():
            near = similar(name, sorted(set(short.values())))
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"targets: wanted some of {', '.join(dict.fromkeys(short.values()))}; got {name!r:.80}{hint}"
            )
    return {name: shape for name, shape in known.items() if name in names or short[name] in names}


def first_pairs(shapes: Mapping[str, tuple[int, ...]], rank: int, seed: int) -> Pairs:
    """a from a uniform distribution as of PEFT's linear layers, b of zeros: nothing is changed at first."""
    random = np.random.default_rng(seed)
    pairs = {}
    for name, (*before, n_out, n_in) in shapes.items():
        a = random.uniform(-1, 1, (*before, rank, n_in)) / n_in**0.5
        pairs[name] = a.astype(np.float32), np.zeros((*before, n_out, rank), np.float32)
    return pairs


def as_adapter(pairs: Pairs) -> Adapter:
    """The pairs as the graph pass takes them; the factor is the program's input."""
    return Adapter(TRAINED, TRAINED, pairs)
