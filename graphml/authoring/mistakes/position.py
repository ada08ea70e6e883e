"""Mistakes in positions: rotary embedding, learned positions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphml.authoring.mistakes.edit import (
    EditSource,
    Mistake,
    Try,
    changed,
    computed,
    embeds,
    leaf,
    made,
    nth_of_layers,
)
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.ops import elementwise, index, position
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import bound

OTHER = {"norm": "neox", "neox": "norm"}
BASES = (1e4, 5e5, 1e6, 1e5, 8e6, 1e7)


def _order(model: EditSource) -> Iterator[Try]:
    modes = {str(node.attributes["mode"]) for node in model.nodes("rope")}
    for mode in sorted(modes):

        def change(node: Node, mode: str = mode) -> Node | None:
            if node.op.name != "rope" or node.attributes["mode"] != mode:
                return None
            return changed(node, mode=OTHER[mode])

        yield Try(f"mode {mode!r} -> {OTHER[mode]!r}", change)


def _head_dims(graph: Graph) -> list[int]:
    return sorted({bound(node.shape[2]) for node in graph.nodes if node.op.name == "rope"})


def _dimensions(model: EditSource) -> Iterator[Try]:
    heads = _head_dims(model.graph)
    configured = model.number("rope.dimension_count")
    wanted = [configured, *heads, *(d // 2 for d in heads), *(d // 4 for d in heads)]
    for value in model.candidates(model.values("rope_table", "n_rot"), *wanted):
        if int(value) % 2 or value < 2 or value > min(heads, default=0):
            continue

        def change(node: Node, value: int = int(value)) -> Node | None:
            is_default = node.op.name == "rope_table" and len(node.inputs) == 1
            return changed(node, n_rot=value) if is_default else None

        yield Try(f"n_rot {_told(model, 'n_rot')} -> {value:g}", change)


def _told(model: EditSource, attribute: str) -> str:
    return ", ".join(f"{value:g}" for value in sorted(model.values("rope_table", attribute)))


def _each_table(model: EditSource, attribute: str, values: list[float]) -> Iterator[Try]:
    """Edits of all tables, and of each alone if there are several."""
    tables = [node.name for node in model.nodes("rope_table")]
    groups = [tables] + ([[table] for table in tables] if len(tables) > 1 else [])
    for value in values:
        for group in groups:

            def change(node: Node, value: float = value, group: list[str] = group) -> Node | None:
                return changed(node, **{attribute: value}) if node.name in group else None

            yield Try(f"{attribute} {_told(model, attribute)} -> {value:g}", change)


def _base(model: EditSource) -> Iterator[Try]:
    keys = (model.number("rope.freq_base"), model.number("rope.freq_base_swa"))
    yield from _each_table(
        model, "freq_base", model.candidates(model.values("rope_table", "freq_base"), *keys, *BASES)
    )


def _scaling(model: EditSource) -> Iterator[Try]:
    factor = model.number("rope.scaling.factor") or model.number("rope.scale_linear")
    wanted = [1 / factor if factor else None, 1.0]
    now = model.values("rope_table", "freq_scale")
    yield from _each_table(model, "freq_scale", model.candidates(now, *wanted))
    if factor:
        original = model.number("rope.scaling.original_context_length") or model.number("context_length")
        fast, slow = model.number("rope.scaling.yarn_beta_fast"), model.number("rope.scaling.yarn_beta_slow")

        def yarn(node: Node) -> Node | None:
            if node.op.name != "rope_table":
                return None
            return changed(
                node, ext_factor=1.0, freq_scale=1 / factor, n_ctx_orig=int(original or 0),
                beta_fast=fast or 32.0, beta_slow=slow or 1.0,
            )  # fmt: skip

        yield Try("no YaRN -> YaRN, as the metadata say", yarn)

    def linear(node: Node) -> Node | None:
        return changed(node, ext_factor=0.0) if node.op.name == "rope_table" else None

    yield Try("YaRN -> linear scaling", linear)
    attn = model.number("rope.scaling.attn_factor")
    yield from _each_table(
        model, "attn_factor", model.candidates(model.values("rope_table", "attn_factor"), attn, 1.0)
    )


def _factors(model: EditSource) -> Iterator[Try]:
    for name in model.unused:
        if name.startswith("rope_f"):

            def change(node: Node, name: str = name) -> Node | None:
                half = (bound(node.shape[1]),) if node.op.name == "rope_table" else ()
                if not half or len(node.inputs) > 1 or model.tensors[name].shape != half:
                    return None
                return made(
                    position.rope_table, node.inputs[0], leaf(model, name), like=node, **node.attributes
                )

            yield Try(f"frequency factors: none -> {name}", change)


def _superfluous(model: EditSource) -> Iterator[Try]:
    def change(node: Node) -> Node | None:
        return node.inputs[0] if node.op.name == "rope" else None

    if model.nodes("rope"):
        yield Try("rope -> none", change)
    for number, names in nth_of_layers(model.nodes("rope")).items():

        def bypass(node: Node, names: set[str] = names) -> Node | None:
            return node.inputs[0] if node.name in names else None

        yield Try(f"rope {number} of a layer -> none", bypass)


def _forgotten(model: EditSource) -> Iterator[Try]:
    attention = model.nodes("attention")
    positions = [node for node in model.graph.nodes if node.op is input_leaf and node.name == "positions"]
    if not attention or not positions:
        return
    width = bound(attention[0].inputs[0].shape[2])
    n_rot = int(model.number("rope.dimension_count") or width)
    base = model.number("rope.freq_base") or 1e4
    n_rot = min(n_rot, width) // 2 * 2
    factors = [
        leaf(model, name)
        for name in model.tensors
        if name.startswith("rope_f") and model.tensors[name].shape == (n_rot // 2,)
    ]
    table = made(
        position.rope_table, positions[0], *factors[:1], like=positions[0], n_rot=n_rot, freq_base=base
    )
    for mode in OTHER:

        def turned(x: Node, mode: str = mode) -> Node | None:
            return None if _is_rotated(x) else made(position.rope, x, table, like=x, mode=mode)

        def change(node: Node, turned=turned) -> Node | None:  # type: ignore[no-untyped-def]
            place = 0 if node.op.name == "attention" else 1
            keys = node.op.name == "set_rows" and node.inputs[0].name.endswith(".k")
            if node.op.name != "attention" and not keys:
                return None
            x = turned(node.inputs[place])
            if x is None:
                return None
            inputs = (*node.inputs[:place], x, *node.inputs[place + 1 :])
            return Node(node.op, inputs, node.type, node.name, node.attributes, node.source)

        yield Try(f"no rope -> rope, mode {mode!r}, base {base:g}", change)


def _is_rotated(x: Node) -> bool:
    """Whether a value was rotated on its way from the last product."""
    stack = [x]
    while stack:
        node = stack.pop()
        if node.op.name == "rope":
            return True
        if node.op.name not in ("mul_mat", "linear") and node.op.family != "leaf":
            stack.extend(node.inputs[:1])
    return False


def _rope_and_norm(model: EditSource) -> Iterator[Try]:
    """A norm of heads after the rope or before it."""

    def before(node: Node) -> Node | None:  # mul(norm(rope(x)), w) -> rope(mul(norm(x), w))
        if node.op.name != "mul" or node.inputs[0].op.name not in ("rms_norm", "layer_norm"):
            return None
        norm, turned = node.inputs[0], node.inputs[0].inputs[0]
        if turned.op.name != "rope":
            return None
        x, table = turned.inputs
        y = made(norm.op, x, like=norm, **norm.attributes)
        return made(
            turned.op, made(node.op, y, node.inputs[1], like=node), table, like=node, **turned.attributes
        )

    def behind(node: Node) -> Node | None:  # rope(mul(norm(x), w)) -> mul(norm(rope(x)), w)
        if node.op.name != "rope" or node.inputs[0].op.name != "mul":
            return None
        scaled, table = node.inputs
        norm = scaled.inputs[0]
        if norm.op.name not in ("rms_norm", "layer_norm"):
            return None
        turned = made(node.op, norm.inputs[0], table, like=node, **node.attributes)
        return made(
            scaled.op, made(norm.op, turned, like=norm, **norm.attributes), scaled.inputs[1], like=node
        )

    yield Try("rope, then the heads' norm -> the norm first", before)
    yield Try("the heads' norm, then rope -> rope first", behind)


def _table_forgotten(model: EditSource) -> Iterator[Try]:
    """Add the row of a token's position to its embedding."""
    name = "position_embd.weight"
    positions = [node for node in model.graph.nodes if node.op is input_leaf and node.name == "positions"]
    if name not in model.unused or not positions:
        return

    def change(node: Node) -> Node | None:
        if not embeds(node):
            return None
        row = made(index.get_rows, leaf(model, name), positions[0], like=node)
        return made(elementwise.add, node, row, like=node)

    yield Try("no positions -> position_embd", change)


def _learned(model: EditSource) -> Iterator[Try]:
    for offset in (1, 2):

        def change(node: Node, offset: int = offset) -> Node | None:
            if node.op.name != "get_rows" or node.inputs[1].name != "positions":
                return None
            table, rows = node.inputs
            last = bound(table.shape[0]) - 1
            moved = computed(
                "later", lambda at: np.minimum(at + offset, last).astype(np.int32), rows, like=node
            )
            return made(node.op, table, moved, like=node, **node.attributes)

        yield Try(f"row of position p: p -> p + {offset}", change)


MISTAKES = (
    Mistake("rope-order", "rope turns other pairs of dimensions: neighbours (norm) or halves (neox)", _order),
    Mistake("rope-dimensions", "another number of dimensions rotates", _dimensions),
    Mistake("rope-base", "rope has another base", _base),
    Mistake("rope-scaling", "rope is scaled otherwise", _scaling),
    Mistake("rope-factors-forgotten", "the file's frequency factors are not given to rope", _factors),
    Mistake("rope-superfluous", "queries or keys of the layer do not rotate, or values", _superfluous),
    Mistake("rope-forgotten", "queries and keys rotate", _forgotten),
    Mistake("rope-and-head-norm", "rope and the norm of heads come in the other order", _rope_and_norm),
    Mistake("positions-forgotten", "embeddings of positions are added", _table_forgotten),
    Mistake("positions-off", "learned positions begin with a later row", _learned),
)
