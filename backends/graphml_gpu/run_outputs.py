"""What a run gives: its outputs, read from the device when they are asked for, and the errors of its steps.

Knows values and where they lie; nothing of dispatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from graphml.errors import BackendError
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml_gpu.host import Host
from graphml_gpu.node_support import value_bytes

_SMALL = 1 << 16
"""Bytes of outputs that are read along with any other: to ask once more takes longer."""


class Outputs(Mapping[str, Array]):
    """Name -> array, the caller's own. What was not asked for before the program's next run is gone then.

    valid: whether there was no other run yet. Reading waits for the device.
    """

    def __init__(self, nodes: Mapping[str, Node], host: Host, valid: Callable[[], bool]) -> None:
        self._nodes, self._host, self._valid = nodes, host, valid

    def __getitem__(self, name: str) -> Array:
        node = self._nodes[name]
        with self._host.lock:
            if not self._host.has(node):
                self._read([node])
            return self._host.value(node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def read(self) -> None:
        """Read all of them at once."""
        with self._host.lock:
            self._read(list(self._nodes.values()))

    def _read(self, wanted: list[Node]) -> None:
        if not self._valid():
            raise BackendError(f"{wanted[0].name}: the program has run again; outputs are read before that")
        along = [node for node in self._nodes.values() if value_bytes(node.type) <= _SMALL]
        with of_a_step():
            self._host.fetch([*wanted, *along])


ADVICE = (
    "the step counts for nothing: what was held before it is still held, and Model.moved goes on with it on"
    " another backend; on the command line, --backend cpu"
)


@contextmanager
def of_a_step() -> Iterator[None]:
    """Raise a `BackendError` of the driver with what can be done then."""
    try:
        yield
    except BackendError as error:
        raise BackendError(f"{error}; {ADVICE}") from error
