"""Documents: a compiled graph as plain JSON values, the input of all dumps, diff, explain and the viewer.

Knows graphs, plans and fusion logs; nothing of drawing, of terminals or of computed values.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

import graphml
from graphml.backend import Backend, Device, ExplainingDevice, Plan
from graphml.compiler.compile import Prepared
from graphml.compiler.multi_device import PartsDevice
from graphml.inspect.dumps.layers import equal_layers, layer_of
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, plain_bytes
from graphml.ir.ops.constant import constant
from graphml.ir.own_op import OWN_FAMILY, OwnOp
from graphml.ir.shape import Shape, Symbol
from graphml.ir.source import Source
from graphml.passes.fusion_log import FusionLog

FORMAT = "graphml-1"
_SHOWN = 64  # numbers of one attribute
Record = dict[str, Any]
"""One node as JSON values."""
Document = dict[str, Any]
"""The whole description; see `describe`."""


@dataclass(frozen=True)
class _Place:
    """Facts of the last graph only: the storage and backend of its values.

    owners: the backend's name of every node, if there are several backends. explaining: by their ids the
    devices that say which kernels they call.
    """

    plan: Plan
    backend: Backend
    device: Device
    owners: Mapping[Node, str]
    explaining: Mapping[int, ExplainingDevice]

    def facts(self, node: Node) -> Record:
        backend, device = self._owner(node)
        explaining = self.explaining.get(id(device))
        reason = None if node.op is constant else backend.refuses(node)  # no backend computes a constant
        offset = self.plan.offsets.get(node)
        workspace = self.plan.workspaces.get(node)
        return {
            "bytes": _bytes(node, device),
            "buffer": None if offset is None else {"offset": offset, "size": device.storage(node)},
            "workspace": None if workspace is None else {"offset": workspace, "size": device.workspace(node)},
            "backend": self._computes(node, backend.name) if reason is None else "numpy",
            "fallback": reason,
            "kernels": None if explaining is None else explaining.called_kernels(node),
        }

    def _computes(self, node: Node, name: str) -> str | None:
        """The backend of a node; None for a leaf that several backends may read."""
        return None if isinstance(self.device, PartsDevice) and node not in self.owners else name

    def _owner(self, node: Node) -> tuple[Backend, Device]:
        if not isinstance(self.device, PartsDevice) or node not in self.owners:
            return self.backend, self.device
        name = self.owners[node]
        return next(b for b in self.device.backends if b.name == name), self.device.devices[name]


_NOWHERE: Record = {"buffer": None, "workspace": None, "backend": None, "fallback": None, "kernels": None}


def describe(
    compiled: Prepared,
    *,
    model: str,
    backend: Backend,
    device: Device,
    overlays: Mapping[str, Mapping[str, float]] | None = None,
) -> Document:
    """Everything about a compiled graph, as JSON values.

    Keys: `format`, `model`, `backend`, `versions`, `passes` (name, seconds, outputs, nodes), `collapsed`
    (runs of layers that are equal after every pass), `fusions` (applied, refused), `plan`, `seconds`,
    `overlays`.
    A node's `bytes` are those of its own storage at the bounds of its shape, 0 for a view and for a changed
    state. `buffer`, `workspace`, `backend`, `fallback` and `kernels` are known after the last pass and null
    before.
    """
    snapshots = dict(compiled.snapshots)
    # a pass that changes nothing returns the graph that it was given
    last = next((name for name, graph in reversed(snapshots.items()) if graph is compiled.graph), None)
    if last is None:
        snapshots["final"] = compiled.graph
        last = "final"
    owners = compiled.backends
    devices = (device, *device.devices.values()) if isinstance(device, PartsDevice) else (device,)
    explaining = {id(member): member for member in devices if isinstance(member, ExplainingDevice)}
    place = _Place(compiled.plan, backend, device, owners, explaining)
    passes: list[Record] = [
        {
            "name": name,
            "seconds": compiled.seconds.get(name, 0.0),
            "outputs": {output: node.name for output, node in graph.outputs.items()},
            "nodes": nodes_of(graph, device, place if name == last else None),
        }
        for name, graph in snapshots.items()
    ]
    return {
        "format": FORMAT,
        "model": model,
        "backend": backend.name,
        "versions": versions(),
        "passes": passes,
        "collapsed": equal_layers([pass_["nodes"] for pass_ in passes]),
        "fusions": _fusions(compiled.fusions),
        "plan": {"peak": compiled.plan.peak, "lower_bound": compiled.plan.lower_bound},
        "seconds": dict(compiled.seconds),
        "overlays": {name: dict(values) for name, values in (overlays or {}).items()},
    }


def nodes_of(graph: Graph, device: Device | None = None, place: _Place | None = None) -> list[Record]:
    """The nodes of a graph in order; without a device the bytes are those of the plain layout."""
    return [
        {
            "name": node.name,
            "op": node.op.name,
            "dtype": repr(node.type) if node.type.parts else node.dtype.name,
            "shape": shape_of(node.shape),
            "inputs": [source.name for source in node.inputs],
            "attributes": {name: _plain(value) for name, value in node.attributes.items()},
            "source": source_of(node.source),
            "origin": list(node.origin),
            "layer": layer_of(node.name),
            "bytes": _bytes(node, device),
            **_declared(node.op),
            **(_NOWHERE if place is None else place.facts(node)),
        }
        for node in graph.nodes
    ]


def _declared(op: Op) -> Record:
    """Of an op of one's own: its family, and what it is and where it is declared."""
    if not isinstance(op, OwnOp):
        return {}
    what = [
        op.help.partition("\n")[0].removesuffix("."),
        op.paper,
        f"declared at {source_of(op.declared.source)}",
    ]
    return {"family": OWN_FAMILY, "declared": "; ".join(filter(None, what))}


def versions() -> dict[str, str]:
    """The versions of the software that made the document."""
    return {"graphml": graphml.__version__, "python": platform.python_version(), "numpy": np.__version__}


def shape_of(shape: Shape) -> list[int | str]:
    """Numbers, and symbols as `T<=512`."""
    return [str(dim) if isinstance(dim, Symbol) else dim for dim in shape]


@functools.lru_cache(maxsize=4096)  # a line makes a node in every layer
def source_of(source: Source | None) -> str | None:
    """File name and line, without the folder, which is private."""
    if source is None:
        return None
    return f"{PurePath(source.file.replace(chr(92), '/')).name}:{source.line}"


def _plain(value: Attribute) -> Any:
    """A JSON value; floats that JSON lacks are texts, and of many numbers only the first are shown."""
    if isinstance(value, tuple):
        more = [f"... {len(value)} numbers"] if len(value) > _SHOWN else []
        return [*map(_plain, value[:_SHOWN]), *more]
    if isinstance(value, float):
        return float(value) if np.isfinite(value) else repr(float(value))
    return value


def _bytes(node: Node, device: Device | None) -> int:
    if node.op.view or node.op.is_write:
        return 0
    if device is not None and node.op.family != "leaf":
        return device.storage(node)
    return sum(plain_bytes(kind) for kind in node.type.parts or (node.type,))


def _fusions(log: FusionLog) -> Record:
    """The log as JSON: each application with the names it covered, each refusal with its reason and node."""
    return {
        "applied": [
            {"fusion": application.fusion, "node": application.node, "covered": list(application.covered)}
            for application in log.applied
        ],
        "refused": [
            {"fusion": refusal.fusion, "node": refusal.node, "reason": refusal.reason, "at": refusal.at}
            for refusal in log.refused
        ],
    }
