"""A GPU as a device: how it lays values out, what it runs, and the program it makes of a planned graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphml.backend import Plan, Progress, Tuned
from graphml.errors import BackendError
from graphml.ir.dtype import DType, dtype
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml_gpu import tuning
from graphml_gpu.bandwidth import read_bandwidth
from graphml_gpu.conversions_in_products import also_read, own_rows
from graphml_gpu.driver import Driver, Facts
from graphml_gpu.limits import DeviceSupport
from graphml_gpu.lowering.products import multiplies_integers
from graphml_gpu.memory import Memory
from graphml_gpu.node_support import value_bytes
from graphml_gpu.program import GpuProgram
from graphml_gpu.state import GpuState
from graphml_gpu.tuner import tune
from graphml_gpu.tuning import UNTUNED


class GpuDevice:
    """A driver, and the memory that the programs and states of one model share.

    backend: the name under which ops of one's own have kernels; None: that of the driver's package. support:
    what the device runs.
    """

    def __init__(self, driver: Driver, backend: str | None = None) -> None:
        self.memory = Memory(driver)
        self.support = DeviceSupport(backend or driver.facts.backend, driver.facts, self.memory.features)
        self._tuning = UNTUNED

    @property
    def facts(self) -> Facts:
        """What the device is and can do."""
        return self.memory.driver.facts

    @property
    def name(self) -> str:
        """See `graphml.backend.NamedDevice`."""
        return self.facts.name

    @property
    def driver(self) -> str:
        """See `graphml.backend.NamedDevice`."""
        return self.facts.driver

    @property
    def kind(self) -> str:
        """See `graphml.backend.NamedDevice`."""
        return "processor" if self.facts.kind == "cpu" else self.facts.kind

    def bandwidth(self) -> float:
        """See `graphml.backend.NamedDevice`."""
        with self.memory.lock:
            return read_bandwidth(self.memory.driver)

    @property
    def memory_bytes(self) -> int | None:
        """See `graphml.backend.MemoryDevice`; the host's memory does not count as the device's own."""
        return None if self.facts.unified_memory else self.facts.memory_bytes

    @property
    def allocated_bytes(self) -> int:
        """See `graphml.backend.AllocatingDevice`."""
        return self.memory.driver.allocated_bytes

    def refuses(self, node: Node) -> str | None:
        """See `graphml.backend.LimitedDevice`: no kernel, or no room for it here."""
        return self.support.refuses(node)

    def activation(self, weight: DType) -> DType | None:
        """See `LimitedDevice`: 8 bits where four products of them are one instruction."""
        integers = self.memory.features.dot4 and multiplies_integers(weight.name)
        return dtype("q8_1") if integers else None

    def also_reads(self, graph: Graph) -> Mapping[Node, Sequence[Node]]:
        """See `graphml.backend.RereadingDevice`."""
        return also_read(own_rows(graph, self.facts, self.memory.features, self.refuses), graph)

    def storage(self, node: Node) -> int:
        """Bytes of a value at its bounds, aligned so that a binding can begin there."""
        return value_bytes(node.type)

    def workspace(self, node: Node) -> int:
        """Bytes of scratch that the node's kernels need, aligned like values."""
        return self.support.workspace(node) if self.refuses(node) is None else 0

    def lower(self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress) -> GpuProgram:
        """Upload weights that are not there yet, compile kernels and bind their arguments."""
        limit = self.facts.max_buffer_bytes
        if plan.peak > limit:
            raise BackendError(
                f"the values of a step need {plan.peak} bytes, and one buffer of {self.facts.name} holds"
                f" {limit}: give a smaller n_batch"
            )
        with self.memory.lock:
            return GpuProgram(graph, plan, weights, self.memory, progress, self.support, self._tuning)

    def use_tuning(self, enabled: bool) -> None:
        """See `graphml.backend.TunableDevice`."""
        self._tuning = tuning.load(self.facts) if enabled else UNTUNED

    def tune(self, graphs: Sequence[Graph], weights: Mapping[str, Array], progress: Progress) -> list[Tuned]:
        """See `graphml.backend.TunableDevice`."""
        return tune(graphs, weights, self, self.memory, progress)

    def state(self, graph: Graph, dims: Mapping[str, int]) -> GpuState:
        """Zeroed buffers."""
        with self.memory.lock:
            return GpuState(self.memory, graph, dims)

    def close(self) -> None:
        """Give the device back."""
        self.memory.close()
