"""Rules of placement as users write them: which nodes go to which backend.

Knows names of nodes, ops and backends; nothing of what backends can run.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphml.errors import UsageError
from graphml.ir.node import Node

_LAYERS = re.compile(r"layers\.(?:\*|(\d+)(?:-(\d+))?)")
_EXPRESSION = re.compile(r"/(.+)/")
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class Rule:
    """A placement rule: nodes that `selects` matches go to `backend`.

    selects: layers (`layers.3`, `layers.0-14`, `layers.*`), an op (`softmax`), or a pattern of the names of
    nodes or of the weights and states that they read (`layers.*.ffn_*`, `blk.0.attn_q.weight`); between
    slashes, a regular expression that is found in the name of a weight (`/ffn_(up|down)_exps/`).
    """

    backend: str
    selects: str

    @property
    def by_layer(self) -> bool:
        """Whether whole layers are named."""
        return _LAYERS.fullmatch(self.selects) is not None

    def matches(self, node: Node, names: Iterable[str]) -> bool:
        """Whether the rule matches this node, by its name and its leaves'; a view has no place of its own."""
        if node.op.view:
            return False
        if (expression := _EXPRESSION.fullmatch(self.selects)) is not None:
            return any(name != node.name and re.search(expression[1], name) for name in names)
        layers = _LAYERS.fullmatch(self.selects)
        if layers is not None:
            layer = layer_of(node)
            first, last = layers[1], layers[2] or layers[1]
            return layer is not None and (first is None or int(first) <= layer <= int(last))
        return node.op.name == self.selects or any(fnmatch.fnmatchcase(n, self.selects) for n in names)

    def __str__(self) -> str:
        return f"{self.backend}:{self.selects}"


def layer_of(node: Node) -> int | None:
    """The layer whose scope the node was built in; None outside of all."""
    match = _LAYER.match(node.name)
    return int(match[1]) if match else None


def named_backends(text: str) -> list[str]:
    """The backends that rules name, as often as they do."""
    return [name for name in (rule.partition(":")[0].strip() for rule in text.split(",")) if name]


def with_named(backend: str, text: str) -> str:
    """A backend, preferred, and the others that rules name, as `--backend` takes them."""
    return ",".join(dict.fromkeys([backend, *named_backends(text)]))


def parse_rules(text: str, backends: Sequence[str]) -> tuple[Rule, ...]:
    """Read `cpu:layers.0-14,reference:softmax`; of two rules for one node the later applies."""
    rules = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        backend, colon, selects = part.partition(":")
        if not colon or not selects:
            raise UsageError(f"place: wanted BACKEND:WHAT, such as cpu:layers.0-14; got {part!r}")
        if backend not in backends:
            raise UsageError(f"place: {part!r}: wanted one of the backends {', '.join(backends)}")
        if (expression := _EXPRESSION.fullmatch(selects)) is not None:
            try:
                re.compile(expression[1])
            except re.error as error:
                raise UsageError(f"place: {part!r}: wanted a regular expression: {error}") from None
        rules.append(Rule(backend, selects))
    return tuple(rules)
