"""Groups of layers by what they see of a text; each group keeps keys and values in cells of its own.

Layers that see all of it use the inputs `cells` and `block_table` and the dimension C. Those that see a
window or a chunk have inputs named after it, `cells.window_1024`, so that cells behind it can be used again.
Knows names and positions; nothing of blocks or sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphml.ir.op import Array
from graphml.ir.ops.attention import first_seen

_TABLE = "block_table"


@dataclass(frozen=True)
class CellGroup:
    """Causal layers whose tokens see the last `window` tokens, or those of their `chunk`; the other is 0."""

    window: int = 0
    chunk: int = 0

    @property
    def name(self) -> str:
        """What it sees and of how many tokens: `window_1024`."""
        return f"chunk_{self.chunk}" if self.chunk else f"window_{self.window}"

    @property
    def symbol(self) -> str:
        """The name of the dimension of its cells."""
        return f"C.{self.name}"

    @property
    def reach(self) -> int:
        """How many tokens before itself a token sees at most."""
        return (self.chunk or self.window) - 1

    def input(self, name: str) -> str:
        """The name of its own `cells` or `block_table`."""
        return f"{name}.{self.name}"

    def first_seen(self, position: int) -> int:
        """The first position that the token at `position` sees."""
        return first_seen(position, {"window": self.window, "chunk": self.chunk, "causal": True})


def groups_among(inputs: Iterable[str]) -> tuple[CellGroup, ...]:
    """The groups whose inputs are among those of a graph, in their order."""
    groups = []
    for name in inputs:
        if name.startswith(f"{_TABLE}."):
            kind, _, size = name.removeprefix(f"{_TABLE}.").partition("_")
            groups.append(CellGroup(**{kind: int(size)}))
    return tuple(groups)


def share_cells(inputs: Iterable[str], arrays: dict[str, Array], dims: dict[str, int]) -> None:
    """Have all groups of a graph use the cells of `cells`: adds their inputs and sizes to those of a step."""
    for group in groups_among(inputs):
        arrays |= {group.input(name): arrays[name] for name in ("cells", _TABLE)}
        dims[group.symbol] = dims["C"]


def cells_dimension(name: str) -> bool:
    """Whether a dimension counts cells, of whatever group."""
    return name == "C" or name.startswith("C.")
