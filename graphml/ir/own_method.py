"""The builder's method of an op of one's own: `g.softpick(x, eps=1e-6)`, with its signature and help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml.errors import GraphError
from graphml.ir.arguments import located
from graphml.ir.node import Node
from graphml.ir.own_op import OwnOp


def own_method(g: Any, op: OwnOp) -> Callable[..., Node]:
    """The op bound to a builder: called with its operands in order or by name, and attributes by name."""
    signature = op.declared.with_names()

    def call(*given: Any, **named: Any) -> Node:
        try:
            bound = signature.bind(*given, **named).arguments
        except TypeError as reason:
            raise located(GraphError(f"[g.{op.name}] {reason}; it takes {signature}"), g) from None
        operands = [bound.pop(name) for name in op.declared.operands]
        node: Node = g.call(op, *operands, **bound)
        return node

    call.__name__ = call.__qualname__ = op.name
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = "\n\n".join(filter(None, (op.help, op.paper)))
    return call
