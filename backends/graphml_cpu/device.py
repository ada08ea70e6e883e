"""The CPU as a device: how it lays values out, what it runs, and the program it makes of a planned graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphml.backend import Plan, Progress, Tuned
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml_cpu import target, tuning
from graphml_cpu.array_kernels.guarded import outside_its_rows
from graphml_cpu.called_kernels import called_kernels
from graphml_cpu.lowering import table
from graphml_cpu.node_support import CpuNodeSupport
from graphml_cpu.program import CpuProgram
from graphml_cpu.row_tops import RowTops
from graphml_cpu.runtime.workers import Team
from graphml_cpu.sizes import value_bytes
from graphml_cpu.state import CpuState, zeros
from graphml_cpu.tuner import tune
from graphml_cpu.tuning import UNTUNED

SUPPORT = CpuNodeSupport("cpu", table())
"""What this backend has kernels for."""


class CpuDevice:
    """A team of worker threads and the programs that it walks.

    support: the kernels that its programs call; others than this backend's own are not tuned.
    """

    lazy_states = True

    def __init__(self, threads: int | None, support: CpuNodeSupport = SUPPORT) -> None:
        self.team = Team(threads)
        self.support = support
        self._tuning = UNTUNED
        self.deterministic = False
        self._row_tops: RowTops | None = None

    @property
    def n_threads(self) -> int:
        """Threads that walk each program."""
        return self.team.n_threads

    def storage(self, node: Node) -> int:
        """Bytes of a value; one copy per thread where each may compute it for itself."""
        return value_bytes(node.type) * (self.n_threads if self.support.replicable(node) else 1)

    def workspace(self, node: Node) -> int:
        """Bytes of scratch that the node's kernels share."""
        return self.support.workspace(node, self.n_threads)

    def lower(self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress) -> CpuProgram:
        """Compile or load the kernels and lay out the tape."""
        return CpuProgram(
            graph, plan, weights, self.team, _arena(plan), progress, self.support, self._tuning,
            self.deterministic,
        )  # fmt: skip

    def use_tuning(self, enabled: bool) -> None:
        """See `graphml.backend.TunableDevice`."""
        self._tuning = tuning.load() if enabled else UNTUNED

    @property
    def order_of_sums(self) -> str:
        """See `graphml.backend.DeterministicDevice`."""
        return target.current().name

    def make_deterministic(self) -> None:
        """See `graphml.backend.DeterministicDevice`."""
        self.deterministic = True

    def pin_threads(self) -> None:
        """See `graphml.backend.PinnableDevice`."""
        self.team.pin()

    def called_kernels(self, node: Node) -> list[str]:
        """See `graphml.backend.ExplainingDevice`."""
        return called_kernels(node, self.support, self.n_threads, self._tuning, self.deterministic)

    def outside_its_rows(self, node: Node, operands: Mapping[Node, Array], dims: Mapping[str, int]) -> str:
        """See `graphml.backend.RowCheckingDevice`."""
        lowering = self.support.lowering(node.op)
        if lowering is None or self.support.refuses(node) is not None:
            return ""
        return outside_its_rows(node, lowering.lower(node, self.n_threads)[0], operands, dims)

    def prepare_top_rows(self) -> None:
        """See `graphml.backend.TopRowsDevice`."""
        if self._row_tops is None:
            self._row_tops = RowTops(self.team)

    def top_rows(
        self, rows: Array, k: int, masks: Mapping[int, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """See `graphml.backend.TopRowsDevice`."""
        self.prepare_top_rows()
        assert self._row_tops is not None
        return self._row_tops.of(rows, k, masks)

    def tune(self, graphs: Sequence[Graph], weights: Mapping[str, Array], progress: Progress) -> list[Tuned]:
        """See `graphml.backend.TunableDevice`."""
        return tune(graphs, weights, self.team, progress)

    def state(self, graph: Graph, dims: Mapping[str, int]) -> CpuState:
        """Zeroed arrays, whose pages come as they are touched."""
        return CpuState(graph, dims)

    def filled_state(self, graph: Graph, dims: Mapping[str, int]) -> CpuState:
        """See `graphml.backend.FilledStateDevice`."""
        return CpuState(graph, dims, large=True)

    def close(self) -> None:
        """Stop the threads."""
        self.team.close()


def _arena(plan: Plan) -> Array:
    """The arena of a plan, or the one that it shares with others."""
    if plan.arena is None:
        return zeros(plan.peak)
    if plan.arena.memory is None:
        plan.arena.memory = zeros(plan.arena.n_bytes)
    memory: Array = plan.arena.memory
    return memory
