"""Coverage of a bisection: what was tested and what was not, reported even if nothing was found.

Knows the steps of a run; nothing of how they were judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.observe import Observation, ObservedStep
from graphml.inspect.compare.tolerances import makes_int8, spans
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.dtype import I32
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.shape import fixed

TILE = 64  # rows and positions of the tiles that kernels have
SHOWN = 4  # names that a line lists


@dataclass(frozen=True)
class Coverage:
    """The situations that the steps of a run have tested.

    positions: of their tokens, as spans; n_ctx: of how many. rows: number of sequences -> tokens of its
    steps. context: the most positions that a token attended to, and their cache blocks. windows: of attention
    -> whether a token was beyond it. experts: of the layer with the fewest chosen experts, those and all.
    in_numpy: nodes that A has no kernel for. kv: the dtype of keys and values.
    """

    positions: str = "none"
    n_ctx: int = 0
    rows: Mapping[int, Sequence[int]] = field(default_factory=dict)
    context: int = 0
    blocks: int = 0
    windows: Mapping[int, bool] = field(default_factory=dict)
    experts: tuple[int, int] = (0, 0)
    in_numpy: tuple[str, ...] = ()
    kv: str = ""
    copies: int = 0  # copies of a step between devices
    same_backend: bool = False  # A and B are one
    in_use: bool = False  # the programs of sessions, whose values share memory, were run
    extremes: bool = False  # values near zero and large ones were tried
    int8: bool = False  # something is converted to int8 ...
    apart: bool = False  # ... and was also checked before that
    sampled: bool = False  # not every value was judged in some steps

    @property
    def looked_at(self) -> tuple[str, ...]:
        """The tested situations, in words."""
        behind = [str(size) for size, crossed in self.windows.items() if crossed]
        lines = [f"steps of {_listed(counts)} tokens of {_sequences(n)}" for n, counts in self.rows.items()]
        lines.append(f"positions {self.positions} of {self.n_ctx}")
        lines.append(f"contexts of up to {self.context} tokens in {self.blocks} cache blocks")
        lines += [f"tokens behind the window of {_listed(behind)}"] if behind else []
        lines += ["rows near zero before norms, and values beyond caps"] if self.extremes else []
        lines += ["values before they are made int8"] if self.apart else []
        lines += [f"copies between devices, {self.copies} in a step"] if self.copies else []
        lines += ["the programs as they are in use"] if self.in_use else []
        return tuple(lines)

    @property
    def not_looked_at(self) -> tuple[str, ...]:
        """The untested situations, in words, with the option that tests them."""
        longest = max((max(counts) for counts in self.rows.values()), default=0)
        others = [kind for kind in CACHE_DTYPES if kind != self.kv]
        return tuple(line for untested, line in (
            (self.same_backend, "kernels that are wrong on both sides, which are one backend (--b)"),
            (self.in_numpy, f"{_some(self.in_numpy)}: A has no kernel, NumPy runs on both sides"),
            (not self.in_use, "the programs as they are in use, whose values share memory"),
            (self.context < self.n_ctx, f"contexts of {self.context + 1} to {self.n_ctx} tokens"),
            (self.positions != f"0-{self.n_ctx - 1}", "tokens at other positions"),
            (self.blocks < 2, "contexts that cross a cache block (--tokens)"),
            (longest <= TILE, f"steps that cross a tile of {TILE} rows (--tokens)"),
            (True, f"steps of more than {longest} tokens or {_sequences(max(self.rows, default=1))}"),
            *((not crossed, f"tokens behind the window of {size} (--tokens {size + 2})")
              for size, crossed in self.windows.items()),
            (self.experts[0] < self.experts[1],
             f"experts that no token chose, {self.experts[1] - self.experts[0]} of {self.experts[1]}"),
            (not self.extremes, "rows near zero before norms, and values beyond caps"),
            (self.int8 and not self.apart, "errors that rounding to int8 hides"),
            (self.sampled, "in steps after the first two: more than three of the values computed alike"),
            (True, "logits of all tokens of a step"),
            (True, f"caches of {_listed(others)} (--kv)"),
            (True, "other numbers of threads (--threads), kernels for other processors"),
        ) if untested)  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Plain values, and both in words."""
        return {**asdict(self), "looked_at": self.looked_at, "not_looked_at": self.not_looked_at}


def _sequences(count: int) -> str:
    return "one sequence" if count == 1 else f"{count} sequences"


def _listed(items: Iterable[object]) -> str:
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def coverage(run: Observation, steps: Sequence[ObservedStep], extremes: bool, judge: Judge) -> Coverage:
    """The coverage of a judged run; steps: of all of its rounds."""
    positions = [step.arrays.inputs[name] for step in steps for name in ("positions",)
                 if name in step.arrays.inputs]  # fmt: skip
    flat = np.unique(np.concatenate(positions)) if positions else np.empty(0, np.int32)
    context = int(flat.max()) + 1 if flat.size else 0
    graphs = list({id(step.graph): step.graph for step in steps}.values())
    rows: dict[int, dict[int, None]] = {}
    for step in steps:
        rows.setdefault(step.arrays.dims.get("S", 1), {})[step.arrays.dims["T"]] = None
    windows = {size for graph in graphs for size in windows_of(graph)}
    return Coverage(
        spans(flat), int(judge.executor.config.n_ctx), {n: tuple(counts) for n, counts in rows.items()},
        context, -(-context // BLOCK_SIZE), {size: context > size for size in sorted(windows)},
        _experts(steps), run.in_numpy, run.facts.get("kv", ""),
        copies=max((len(step.copies) for step in steps), default=0),
        same_backend=judge.executor.backend.name == run.facts.get("backend"),
        in_use=any(step.unwatched is not None for step in run.steps),
        extremes=extremes,
        int8=any(makes_int8(node) for graph in graphs for node in graph.nodes),
        apart=len(steps) > len(run.steps),
        sampled=not all(step.whole for step in steps),
    )  # fmt: skip


def windows_of(graph: Graph) -> set[int]:
    """The window sizes of attention that does not attend to all positions."""
    said = (integer(node.attributes, name) for node in graph.nodes if node.op.family == "attention"
            for name in ("window", "chunk") if name in node.attributes)  # fmt: skip
    return {size for size in said if size}


def _experts(steps: Sequence[ObservedStep]) -> tuple[int, int]:
    """Of the products with routed experts, the one with the fewest chosen experts: those and all."""
    chosen: dict[str, set[int]] = {}
    sizes: dict[str, int] = {}
    for step in steps:
        for node in step.graph.nodes:
            for weight, ids in _choices(node):
                if ids.name in step.values:
                    chosen.setdefault(weight.name, set()).update(np.unique(step.values[ids.name]).tolist())
                    sizes[weight.name] = fixed(weight.shape[0])
    return min(
        ((len(chosen[name]), size) for name, size in sizes.items()), key=lambda counts: counts[0] / counts[1],
        default=(0, 0),
    )  # fmt: skip


def _choices(node: Node) -> list[tuple[Node, Node]]:
    """The matrices of experts that a node reads, each with the ids of the chosen ones."""
    matrices = [source for source in node.inputs if source.op.name == "weight" and len(source.shape) == 3]
    ids = [source for source in node.inputs if source.dtype is I32 and len(source.shape) == 2]
    return [(matrix, ids[0]) for matrix in matrices] if ids else []
