"""Mistakes in experts: weights from scores, and the shared expert."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import (
    EditSource,
    Mistake,
    Try,
    changed,
    fitted,
    leaf,
    made,
    tensor_of,
)
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.ops import elementwise, index, layout, linear, reduce
from graphml.ir.shape import bound

SMALLEST = 6.103515625e-5  # ggml's lower bound of sums of weights


def _is_sum(node: Node) -> bool:
    held = node.inputs[0] if node.op.name == "clamp" else node
    return held.op.name == "sum_rows"


def _normalised(model: EditSource) -> Iterator[Try]:
    def without(node: Node) -> Node | None:
        ours = node.op.name == "div" and len(node.shape) == 2 and _is_sum(node.inputs[1])
        return node.inputs[0] if ours else None

    def with_sum(node: Node) -> Node | None:
        if node.op.name != "gather":
            return None
        total = made(reduce.sum_rows, node, like=node)
        held = made(elementwise.clamp, total, like=node, low=SMALLEST)
        return made(elementwise.div, node, held, like=node)

    if model.nodes("gather"):
        if any(len(node.shape) == 2 for node in model.nodes("div")):
            yield Try("weights of a token's experts over their sum -> as they are", without)
        else:
            yield Try("weights of a token's experts as they are -> over their sum", with_sum)


def _gating(model: EditSource) -> Iterator[Try]:
    """Scores by softmax over all, by sigmoid, or by softmax over the chosen."""
    routed = {node.inputs[0].name for node in model.nodes("top_k", "gather", "top_k_groups")} | {
        node.inputs[0].name for node in model.nodes("add") if node.inputs[0].op.name in ("softmax", "sigmoid")
    }
    for now, other in ((reduce.softmax, elementwise.sigmoid), (elementwise.sigmoid, reduce.softmax)):

        def change(node: Node, now=now, other=other) -> Node | None:  # type: ignore[no-untyped-def]
            if node.op is not now or node.name not in routed:
                return None
            return made(other, node.inputs[0], like=node)

        yield Try(f"{now.name} of the router's scores -> {other.name}", change)

    def chosen(node: Node) -> Node | None:
        if node.op.name != "gather" or node.inputs[0].op.name not in ("softmax", "sigmoid"):
            return None
        plain = made(node.op, node.inputs[0].inputs[0], node.inputs[1], like=node)
        return made(reduce.softmax, plain, like=node)

    yield Try("weights by scores over all experts -> softmax over the chosen", chosen)


def _count(model: EditSource) -> Iterator[Try]:
    """Another number of chosen experts: the file's, one more, or one fewer."""
    routed = {node.name for node in model.nodes("top_k") if _is_routed(node)}
    used = {integer(node.attributes, "k") for node in model.nodes("top_k") if node.name in routed}
    for now in sorted(used):
        for count in map(int, model.candidates({now}, model.number("expert_used_count"), now + 1, now - 1)):

            def change(node: Node, now: int = now, count: int = count) -> Node | None:
                if node.name in routed:
                    return changed(node, k=count) if node.attributes["k"] == now else None
                return fitted(node, now, count) if layer_of(node.name) is not None else None

            if count > 0:
                yield Try(f"{now} experts of a token -> {count}", change)


def _is_routed(node: Node) -> bool:
    """Whether these are the numbers of experts: the largest scores of a router."""
    stack, seen = list(node.inputs), set[Node]()
    while stack:
        source = stack.pop()
        name = tensor_of(source.inputs[0]) if source.op.name == "mul_mat" else None
        if name is not None:
            return "ffn_gate_inp" in name
        stack += [each for each in source.inputs if each not in seen]
        seen.update(source.inputs)
    return False


def _groups(model: EditSource) -> Iterator[Try]:
    """The choice from the best groups of experts alone, as the metadata say, or from all."""
    groups, used = model.number("expert_group_count"), model.number("expert_group_used_count")

    def everywhere(node: Node) -> Node | None:
        return node.inputs[0] if node.op.name == "top_k_groups" else None

    def limited(node: Node) -> Node | None:
        if node.op.name != "top_k" or not _is_routed(node) or node.inputs[0].op.name == "top_k_groups":
            return None
        best = made(
            index.top_k_groups,
            node.inputs[0],
            like=node,
            n_group=int(groups or 0),
            n_group_used=int(used or 0),
        )
        return made(node.op, best, like=node, **node.attributes)

    if model.nodes("top_k_groups"):
        yield Try("experts of the best groups -> of all", everywhere)
    elif groups and used and groups > used:
        yield Try(f"experts of all groups -> of the best {used:g} of {groups:g}", limited)


def _scale(model: EditSource) -> Iterator[Try]:
    factor = model.number("expert_weights_scale")
    if not factor or factor == 1.0 or not model.nodes("gather"):
        return

    def change(node: Node) -> Node | None:
        last = node.op.name == "reshape" and len(node.shape) == 3 and node.shape[-1] == 1
        weights = last and node.inputs[0].op.name in ("div", "gather", "softmax")
        return made(elementwise.scale, node, like=node, factor=factor) if weights else None

    yield Try(f"weights of experts -> times {factor:g}", change)


def _shared(model: EditSource) -> Iterator[Try]:
    """The shared expert added to the sum of the chosen ones."""
    unused = {name for name in model.unused if "_shexp.weight" in name}
    if not unused:
        return
    last = {layer: node.name for node in model.nodes("add") if (layer := layer_of(node.name)) is not None}

    def change(node: Node) -> Node | None:
        layer = layer_of(node.name)
        if layer is None or node.name != last.get(layer):
            return None
        x = _routed(node, f"blk.{layer}.ffn_gate_inp.weight")
        names = [f"blk.{layer}.ffn_{part}_shexp.weight" for part in ("gate", "up", "down")]
        if x is None or not unused.issuperset(names):
            return None
        gate, up = (made(linear.mul_mat, leaf(model, name), x, like=node) for name in names[:2])
        h = made(elementwise.mul, made(elementwise.silu, gate, like=node), up, like=node)
        y = made(linear.mul_mat, leaf(model, names[2]), h, like=node)
        if f"blk.{layer}.ffn_gate_inp_shexp.weight" in unused:
            whole = leaf(model, f"blk.{layer}.ffn_gate_inp_shexp.weight")
            row = made(layout.reshape, whole, like=node, tail=(1, bound(whole.shape[-1])), keep=0)
            y = made(
                elementwise.mul,
                y,
                made(elementwise.sigmoid, made(linear.mul_mat, row, x, like=node), like=node),
                like=node,
            )
        return made(elementwise.add, node, y, like=node)

    yield Try("chosen experts alone -> and the shared one", change)


def _routed(node: Node, router: str) -> Node | None:
    """The router's input, found from a node after it."""
    seen, stack = {node}, [node]
    while stack:
        ancestor = stack.pop()
        if ancestor.op.name == "mul_mat" and tensor_of(ancestor.inputs[0]) == router:
            return ancestor.inputs[1]
        fresh = [source for source in ancestor.inputs if source not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return None


MISTAKES = (
    Mistake("shared-expert-forgotten", "an expert that all tokens share is left out", _shared),
    Mistake("expert-weights-sum", "weights of a token's experts sum to 1, or do not", _normalised),
    Mistake("expert-gating", "scores of experts become weights otherwise", _gating),
    Mistake("expert-count", "a token has more experts, or fewer", _count),
    Mistake("expert-groups", "experts are chosen from the best groups alone, or from all", _groups),
    Mistake("expert-scale-forgotten", "weights of experts have a factor", _scale),
)
