"""The text form: what is written parses back to the same graph, and bad lines are named."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node, Source
from graphml.ir.op import Type
from graphml.ir.ops.elementwise import clamp
from graphml.ir.text import parse, write
from graphml.passes.fusion import all_ops
from tests.graphs import Recipe, random_graphs
from tests.looped import looped


def facts(graph: Graph) -> list[tuple[object, ...]]:
    """Everything that a graph says, as values that compare."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    nodes: list[tuple[object, ...]] = [
        (node.op.name, [place[source] for source in node.inputs], node.type, node.name, dict(node.attributes),
         node.source, node.origin)
        for node in graph.nodes
    ]  # fmt: skip
    return [*nodes, *((name, place[node]) for name, node in graph.outputs.items())]


def small() -> Graph:
    g = Builder(max_tokens=7)
    x = g.input("x", F32, (g.n_tokens, 6))
    y = g.call(clamp, g.rows(g.weight("w", F32, (9, 6)), g.tokens), low=-1.5)
    return g.finish(logits=g.add(x, y, name="sum"))


def test_the_form() -> None:
    lines = write(small()).splitlines()
    assert lines[0] == "output logits = %sum"
    assert lines[1].startswith("%x: f32[T<=7, 6] = input() {} at ")
    here = '"' + str(Path(__file__)) + '"'
    assert lines[4].startswith(
        f"%get_rows: f32[T<=7, 6] = get_rows(%w, %tokens) {{'from_dtype': 'f32'}} at {here}:"
    )
    assert lines[5].startswith("%clamp: f32[T<=7, 6] = clamp(%get_rows) {'low': -1.5, 'high': inf} at ")
    assert lines[6].startswith("%sum: f32[T<=7, 6] = add(%x, %clamp) {} at ")


@settings(deadline=None)
@given(random_graphs(odd_names=True))
def test_round_trip(recipe: Recipe) -> None:
    text = write(recipe.graph)
    parsed = parse(text, all_ops())
    assert facts(parsed) == facts(recipe.graph)
    assert write(parsed) == text


NAMES = [
    "",
    " ",
    "%",
    "a b",
    "a,b",
    "a)b",
    "a\nb",
    "x: f32[2]",
    "{}",
    '"',
    "\\",
    "ä漢🙂",
    "]",
    "\u2028",
    "\udc80",
    "%20",
]


@looped("name", NAMES, ids=ascii)
def test_odd_names_files_origins_and_texts(name: str) -> None:
    leaf = Node(all_ops()["weight"], (), Type(F32, (2,)), name, source=Source(f"{name}.py", 3))
    node = Node(all_ops()["tanh"], (leaf,), leaf.type, f"{name}.tanh", {f"x{name}": name}, None, (name, "b"))
    graph = Graph((leaf, node), {f"out{name}": node})
    assert facts(parse(write(graph), all_ops())) == facts(graph)


INF = float("inf")
VALUES = [
    0,
    -3,
    2.5,
    INF,
    -INF,
    1e300,
    10**30,
    True,
    False,
    "",
    "inf",
    "it's",
    (),
    (1, -2),
    (1.5, -INF),
    (0.1,),
]


@looped("value", VALUES, ids=repr)
def test_attribute_values(value: object) -> None:
    leaf = Node(all_ops()["weight"], (), Type(F32, (2,)), "w", {"value": value})  # type: ignore[dict-item]  # as above
    parsed = parse(write(Graph((leaf,), {})), all_ops()).nodes[0].attributes["value"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_blank_lines_do_not_matter() -> None:
    text = write(small())
    assert facts(parse("\n" + text.replace("\n", "\n\n"), all_ops())) == facts(parse(text, all_ops()))


def test_remarks_do_not_matter() -> None:
    text = write(small())
    assert facts(parse("# %x: a remark\n" + text + "#", all_ops())) == facts(parse(text, all_ops()))


GOOD = "%x: f32[2] = input() {}"
BAD = {
    "nothing of the kind": "hello",
    "unknown op": "%y: f32[2] = boom(%x) {}",
    "unknown operand": "%y: f32[2] = tanh(%z) {}",
    "unknown dtype": "%y: f99[2] = tanh(%x) {}",
    "shape of words": "%y: f32[two] = tanh(%x) {}",
    "negative shape": "%y: f32[-2] = tanh(%x) {}",
    "bad bound": "%y: f32[T<=x] = tanh(%x) {}",
    "no attributes": "%y: f32[2] = tanh(%x)",
    "attributes are a set": "%y: f32[2] = tanh(%x) {1}",
    "attribute name is a number": "%y: f32[2] = tanh(%x) {1: 2}",
    "attribute is a list": "%y: f32[2] = tanh(%x) {'a': [1]}",
    "attribute is a sum": "%y: f32[2] = tanh(%x) {'a': 1 + 1}",
    "attribute is none": "%y: f32[2] = tanh(%x) {'a': None}",
    "attribute is bytes": "%y: f32[2] = tanh(%x) {'a': b'1'}",
    "attributes are unpacked": "%y: f32[2] = tanh(%x) {**{}}",
    "attribute is a name": "%y: f32[2] = tanh(%x) {'a': e}",
    "attribute is not text": "%y: f32[2] = tanh(%x) {'a': ~'x'}",
    "name taken": "%x: f32[2] = input() {}",
    "bad origin": "%y: f32[2] = tanh(%x) {} from [1]",
    "bad file": '%y: f32[2] = tanh(%x) {} at "a\\q":3',
    "something after it": "%y: f32[2] = tanh(%x) {} ;",
    "nested deeply": "%y: f32[2] = tanh(%x) {'a': " + "(" * 5000 + ")" * 5000 + "}",
    "negated deeply": "%y: f32[2] = tanh(%x) {'a': " + "-" * 5000 + "1}",
    "output of nothing": "output y = %z",
    "output without a node": "output y",
}


@looped("bad", BAD.values(), ids=list(BAD))
def test_a_bad_line_is_named(bad: str) -> None:
    with pytest.raises(GraphError, match=r"^line 2\b"):
        parse(f"{GOOD}\n{bad}\n", all_ops())


HOSTILE = [
    "{'a': __import__('pathlib').Path('FILE').touch()}",
    "{__import__('pathlib').Path('FILE').touch(): 1}",
    "{'a': [open('FILE', 'w') for _ in (1,)]}",
    "{'a': (lambda: open('FILE', 'w'))()}",
    "{'a': f'{open(\"FILE\", \"w\")}'}",
]


@pytest.mark.parametrize("attributes", HOSTILE)
def test_parsing_runs_nothing(attributes: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(GraphError, match="line 1"):
        parse(f"%x: f32[2] = input() {attributes.replace('FILE', str(made))}", all_ops())
    assert not made.exists()


@given(st.text(max_size=80))
def test_any_text_is_a_graph_or_an_error(text: str) -> None:
    with contextlib.suppress(GraphError):
        parse(text, all_ops())


@given(st.data())
def test_a_damaged_graph_is_a_graph_or_an_error(data: st.DataObject) -> None:
    text = write(small())
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(GraphError):
        parse(damaged, all_ops())
