"""The contract that a backend fulfils. A backend is a value found through the entry point `graphml.backends`.

It says what it can do, opens a device, and the device turns a planned graph into a program. What states,
programs and devices may do besides is in `optional_parts`. Knows nothing of models, files or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from graphml.ir.dtype import DType
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) during long work; what: "download", "compile", "prefill", ..."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(eq=False)
class Arena:
    """Memory of a device for the plans of programs that never run at once, such as the parts of one graph.

    n_bytes: the largest peak of those plans. memory: the device's own, made when the first is lowered.
    """

    n_bytes: int
    memory: Any = None


@dataclass(frozen=True)
class Plan:
    """Where the values of a graph are in the arena of a device.

    offsets: node -> byte offset; weights and states, written or not, have none. workspaces: node -> offset of
    the scratch that its kernels asked for. peak: the arena's bytes. lower_bound: bytes of the largest set of
    values alive at one time, which no plan can go below. arena: what the program shares with others, if it
    does; a device may give it memory of its own all the same.
    """

    offsets: Mapping[Node, int]
    workspaces: Mapping[Node, int]
    peak: int
    lower_bound: int
    arena: Arena | None = None


class State(Protocol):
    """What a session keeps between steps on a device: the arrays of the graph's state leaves."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole state."""

    def array(self, name: str) -> Array:
        """The state as a NumPy array, to read, save or restore."""


class Program(Protocol):
    """A graph made ready to run."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays of the inputs' largest shapes; the caller fills the leading part before a run."""

    def run(self, dims: Mapping[str, int], state: State) -> Mapping[str, Array]:
        """Run one step; dims are the values of the symbols. The outputs are valid until the next run.

        A device may read them back when they are asked for, and be still at work when this returns.
        """


class Device(Protocol):
    """A backend opened: threads started or a GPU acquired."""

    def storage(self, node: Node) -> int:
        """Bytes of the node's value at its bounds, as this device lays it out."""

    def workspace(self, node: Node) -> int:
        """Bytes of scratch that the node's kernels need beside their output."""

    def lower(self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress) -> Program:
        """Make the program. weights: name -> array as the graph's dtype holds it; kept, never copied."""

    def state(self, graph: Graph, dims: Mapping[str, int]) -> State:
        """Zeroed arrays of the graph's states for the given values of their symbols."""

    def close(self) -> None:
        """Give everything back; programs of this device can no longer run."""


class RowOrder(Protocol):
    """Compiled loops over a row for samplers: free of the interpreter's lock, for any thread.

    scores: float32 [n] without NaN. The order: int64 positions, the highest score first, equals by position.
    """

    def descending(self, scores: Array) -> Array:
        """All positions in order."""

    def prefix(self, scores: Array, shares: Array, mass: float, least: int, beyond: bool) -> Array:
        """The first positions in order whose shares, float32 [n] added one by one, together reach a mass.

        At least `least`, or all; beyond: the sum has to exceed the mass. Valid until the thread's next call.
        """


class WeightEncoder(Protocol):
    """A compiled encoder of a weight format, for whole matrices on several threads."""

    def __call__(self, values: Array, importance: Array | None, out: Array, threads: int | None) -> bool:
        """Encode values, float32 [rows, columns of whole blocks], into out, uint8 [rows, bytes of a row].

        importance: float32 [columns], the weight of each column's squared errors. All arrays are contiguous.
        False if a value is not finite; `out` means nothing then. The bytes do not depend on the threads.
        """


@dataclass(frozen=True)
class Backend:
    """What a backend can do, before anything is opened.

    name: as the user writes it.
    open: threads (None: the backend chooses) -> a device; `BackendError` where it cannot be used.
    refuses: why a node has no kernel here; None where it has one. Refused nodes run in NumPy.
    Optional, with defaults: fused (names of fused ops that have kernels), activation (dtype that the other
    operand of a product with weights of a dtype is converted to; None: f32), product_dtype (that of the
    products of a node of attention), unavailable (why the backend cannot be used on this machine), describe
    (facts for `graphml doctor`), reads_back (whether outputs are in memory of a device: the top-k ids of a
    row are outputs then, too, so that the row need not be read), row_order (compiled loops for samplers,
    called by any thread), encoder (by the name of a format; None where the format has none).
    """

    name: str
    open: Callable[[int | None], Device]
    refuses: Callable[[Node], str | None]
    fused: frozenset[str] = frozenset()
    activation: Callable[[DType], DType | None] = lambda weight: None
    product_dtype: Callable[[Node], str] = lambda node: "f32"
    unavailable: Callable[[], str | None] = lambda: None
    describe: Callable[[], Mapping[str, Any]] = dict
    reads_back: bool = False
    row_order: RowOrder | None = None
    encoder: Callable[[str], WeightEncoder | None] = lambda format: None
