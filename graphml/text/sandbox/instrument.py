"""Adds counting to a template's syntax tree, and refuses nodes that chat templates do not need.

Every block of statements begins with a step, so that loops, macros and recursion are counted; expressions
that build or compare values pass through counting filters, whose names are not valid in templates. Knows
syntax; nothing of the budget.
"""

# ruff: noqa: N802 - Jinja's visitors find their methods by the names of node classes
from __future__ import annotations

from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

STEP, PASS, MADE, READ, CONCAT = "count step", "count pass", "count made", "count read", "count concat"

# Several times the longest templates known; compiling so many takes a third of a second.
LARGEST_TREE = 6_000

_REFUSED: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from ... import",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}`, which marks the assistant's text: rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - the name and the kind of value are Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the tag's content as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def instrument(tree: nodes.Template) -> nodes.Template:
    """Return the tree with counting added; TemplateSyntaxError for one that is too large or refused."""
    counted = _Instrument().visit(tree)
    assert isinstance(counted, nodes.Template)
    return counted


class _Instrument(NodeTransformer):
    def __init__(self) -> None:
        self._n_nodes = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self._n_nodes += 1
        if self._n_nodes > LARGEST_TREE:
            raise TemplateSyntaxError(
                f"the template is too long: over {LARGEST_TREE:,} syntax nodes", node.lineno
            )
        refused = _REFUSED.get(type(node))
        if refused is not None:
            raise TemplateSyntaxError(f"{{% {refused} %}} is not possible in a chat template", node.lineno)
        bodies = [(name, getattr(node, name, None)) for name in ("body", "else_")]
        costs = {name: _static_text(body) for name, body in bodies if isinstance(body, list)}
        node = super().generic_visit(node, *args, **kwargs)
        for name, cost in costs.items():
            body = getattr(node, name)
            if body or name == "body":  # a loop with an empty body runs too
                line = body[0].lineno if body else node.lineno
                step = _filter(nodes.Const(cost).set_lineno(line), STEP)
                body.insert(0, nodes.ExprStmt(step).set_lineno(line))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = _filter(node.test, PASS)  # skipped items never reach the body's step
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _read(node.expr)
        for operand in node.ops:
            operand.expr = _read(operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes).set_lineno(node.lineno), CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if _constant(node.items) else _filter(node, MADE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" or _constant(node.items) else _filter(node, MADE)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _read(pair.key)  # a key is hashed, whole
        return _filter(node, MADE)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, MADE) if isinstance(node.arg, nodes.Slice) else node


def _static_text(body: list[nodes.Node]) -> int:
    """Return how many characters of plain text these statements contain."""
    outputs = (node for node in body if isinstance(node, nodes.Output))
    parts = (part for output in outputs for part in output.nodes)
    return sum(len(part.data) for part in parts if isinstance(part, nodes.TemplateData))


def _constant(items: list[nodes.Expr]) -> bool:
    return all(isinstance(item, nodes.Const) for item in items)


def _read(expression: nodes.Expr) -> nodes.Expr:
    return expression if isinstance(expression, nodes.Const) else _filter(expression, READ)


def _filter(expression: nodes.Node, name: str) -> nodes.Expr:
    counting = nodes.Filter(expression, name, [], [], None, None)
    counting.set_lineno(expression.lineno)
    return counting
