"""The plain description of a traced module: what `peers/trace_torch.py` writes, as frozen values.

Knows names, ops, arguments and shapes; nothing of what they compute.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from graphml.errors import ArchitectureError
from graphml.inspect.compare import archive
from graphml.system.read_files import guarded, plain_json

FORMAT = "graphml-trace-1"
Array = NDArray[Any]
MOST_NODES = 1 << 20
LARGEST_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class TracedNode:
    """One op. args: by name in the op's schema; `{"node": name}` is another node or an input.

    shape: numbers, and names of sizes that vary with the text; None: no tensor. path: of the module that
    called it, kind: of that module's class. line: `file.py:123` of the model's code.
    """

    name: str
    op: str
    args: Mapping[str, Any]
    shape: tuple[int | str, ...] | None
    dtype: str
    path: str
    kind: str
    line: str

    @property
    def operands(self) -> list[str]:
        """Names of the nodes and inputs among the arguments, in order."""
        return list(_operands(self.args))

    @property
    def told(self) -> str:
        """Op, module path and source line, for errors."""
        at = f" ({self.line})" if self.line else ""
        return f"{self.op} in {self.path or 'the model itself'}{at}"


@dataclass(frozen=True)
class TracedInput:
    """A leaf: `ids`, a `parameter`, or a `constant` (buffers too); name: the tensor's in the module."""

    kind: str
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TracedModule:
    """A traced module from ids [1, T] to logits [1, T, V].

    values: of constants and of parameters that are not in the checkpoint under their names; samples: ids and
    the logits that PyTorch computed for them. length: tokens of the text that was traced; other_lengths: for
    which the model's Python may compute something else, each with the line that asks.
    """

    by: str
    source: str
    model_class: str
    config: Mapping[str, Any]
    length: int
    inputs: Mapping[str, TracedInput]
    nodes: Mapping[str, TracedNode]
    result: str
    values: Mapping[str, Array]
    samples: tuple[tuple[tuple[int, ...], Array], ...]
    other_lengths: Mapping[int, str] = field(default_factory=dict)

    def leading_to(self, name: str) -> list[str]:
        """A value and all nodes and inputs that it is computed from, nearest first."""
        stack, known = [name], dict[str, None]()
        while stack:
            ancestor = stack.pop()
            if ancestor not in known:
                known[ancestor] = None
                stack += self.nodes[ancestor].operands if ancestor in self.nodes else []
        return list(known)

    def parameters_of(self, name: str) -> list[str]:
        """The parameters that a value is computed from."""
        leaves = [leaf for leaf in self.leading_to(name) if leaf in self.inputs]
        return [leaf for leaf in leaves if self.inputs[leaf].kind == "parameter"]

    def with_ids(self, ids: Array) -> dict[str, Array]:
        """The value of the module's input of ids, by its name. ids: [T]."""
        return {name: ids[None] for name, leaf in self.inputs.items() if leaf.kind == "ids"}


def _operands(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "node" in value:
            yield str(value["node"])
        elif "number" not in value and "text" not in value:
            for inner in value.values():
                yield from _operands(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _operands(inner)


def read_description(folder: Path) -> TracedModule:
    """Read a folder that the tracer wrote; ArchitectureError if it is damaged or of another version."""
    path = folder / "description.json"
    what = "the description cannot be read"
    document = plain_json(path, ArchitectureError, LARGEST_BYTES, what)
    values = archive.arrays_of(folder / "values.npz", ArchitectureError, what)
    with guarded(path, ArchitectureError, what):
        if document["format"] != FORMAT or len(document["nodes"]) > MOST_NODES:
            raise ValueError(f"wanted format {FORMAT}; got {str(document['format'])[:40]!r}")
        return _built(document, values)


def _built(document: Mapping[str, Any], values: dict[str, Array]) -> TracedModule:
    nodes = {
        node["name"]: TracedNode(
            node["name"],
            node["op"],
            node["args"],
            None if node.get("shape") is None else tuple(node["shape"]),
            node.get("dtype", ""),
            node["path"],
            node["kind"],
            node["line"],
        )
        for node in document["nodes"]
    }
    inputs = {
        name: TracedInput(leaf["kind"], leaf.get("name", ""), tuple(leaf.get("shape", ())))
        for name, leaf in document["inputs"].items()
    }
    _check(nodes, inputs, document["result"])
    nodes = _merged(nodes, document["result"])
    sizes = sorted(
        int(name.split(".")[1]) for name in values if name.startswith("sample.") and name.endswith("ids")
    )
    samples = tuple(
        (tuple(map(int, values.pop(f"sample.{size}.ids"))), values.pop(f"sample.{size}.logits"))
        for size in sizes
    )
    return TracedModule(
        document["by"],
        document["source"],
        document["class"],
        document["config"],
        int(document["length"]),
        inputs,
        nodes,
        document["result"],
        values,
        samples,
        {int(size): str(text) for size, text in document.get("other_lengths", {}).items()},
    )


def _check(nodes: Mapping[str, TracedNode], inputs: Mapping[str, TracedInput], result: str) -> None:
    """Nodes may only read what is before them."""
    known = set(inputs)
    for node in nodes.values():
        unknown = [operand for operand in node.operands if operand not in known]
        if unknown:
            raise ValueError(f"node {node.name!r} reads {unknown[0]!r}, which is not before it")
        known.add(node.name)
    if result not in known:
        raise ValueError(f"the result {result!r} is no node")


def _merged(nodes: Mapping[str, TracedNode], result: str) -> dict[str, TracedNode]:
    """Without nodes of a module that repeat another one, as views of values that change in place do."""
    kept: dict[str, TracedNode] = {}
    same: dict[str, str] = {}
    known: dict[tuple[str, ...], str] = {}
    for name, node in nodes.items():
        args = _renamed(node.args, same)
        first = known.setdefault((node.op, node.path, json.dumps(args, sort_keys=True)), name)
        if first == name or name == result:
            kept[name] = replace(node, args=args)
        else:
            same[name] = first
    return kept


def _renamed(value: Any, same: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        if "node" in value:
            return {"node": same.get(value["node"], value["node"])}
        return {key: _renamed(inner, same) for key, inner in value.items()}
    return [_renamed(inner, same) for inner in value] if isinstance(value, list) else value
