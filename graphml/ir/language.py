"""The builder of architectures: the methods of `g` in `build(g, config, weights)`.

Each method is a function of its family in `methods`, whose first argument is the builder, with its signature,
the requirements of its arguments and an example; docs/builder.md lists them all. The inputs of a step are in
`step.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphml.errors import GraphError
from graphml.ir import op_table
from graphml.ir.arguments import located
from graphml.ir.methods import attention, elementwise, index, layout, linear, norm, position, recurrent
from graphml.ir.node import Node
from graphml.ir.own_op import OwnOp
from graphml.ir.step import StepBuilder
from graphml.ir.suggestion import meant


class Builder(StepBuilder):
    """Builds the graph of one step; see `StepBuilder` for its bounds."""

    # element by element
    add = elementwise.add
    sub = elementwise.sub
    mul = elementwise.mul
    div = elementwise.div
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    less = elementwise.less
    less_equal = elementwise.less_equal
    equal = elementwise.equal
    where = elementwise.where
    cast = elementwise.cast
    neg = elementwise.neg
    scale = elementwise.scale
    clamp = elementwise.clamp
    silu = elementwise.silu
    gelu = elementwise.gelu
    gelu_erf = elementwise.gelu_erf
    gelu_quick = elementwise.gelu_quick
    relu = elementwise.relu
    exp = elementwise.exp
    log = elementwise.log
    softplus = elementwise.softplus
    absolute = elementwise.absolute
    sqrt = elementwise.sqrt
    sqr = elementwise.sqr
    floor = elementwise.floor
    round = elementwise.round
    sigmoid = elementwise.sigmoid
    tanh = elementwise.tanh
    softcap = elementwise.softcap
    # over the last dimension
    rms_norm = norm.rms_norm
    layer_norm = norm.layer_norm
    l2_norm = norm.l2_norm
    walsh_hadamard = norm.walsh_hadamard
    softmax = norm.softmax
    sum_rows = norm.sum_rows
    max_rows = norm.max_rows
    min_rows = norm.min_rows
    cumsum = norm.cumsum
    mean_rows = norm.mean_rows
    text_means = norm.text_means
    neighbours = norm.neighbours
    # matrices
    dequantize = linear.dequantize
    mul_mat = linear.mul_mat
    outer = linear.outer
    mul_mat_id = linear.mul_mat_id
    per_head = linear.per_head
    # positions
    rope_table = position.rope_table
    rope = position.rope
    position_scale = position.position_scale
    # shapes
    heads = layout.heads
    flatten = layout.flatten
    reshape = layout.reshape
    columns = layout.columns
    concat = layout.concat
    repeat = layout.repeat
    permute = layout.permute
    results = layout.results
    # by index
    rows = index.rows
    select_output_rows = index.select_output_rows
    embed = index.embed
    top_k = index.top_k
    top_k_groups = index.top_k_groups
    column_numbers = index.column_numbers
    gather = index.gather
    # attention
    attend = attention.attend
    select = attention.select
    compress = attention.compress
    select_groups = attention.select_groups
    attend_compressed = attention.attend_compressed
    attend_relative = attention.attend_relative
    keep_source = attention.keep_source
    attend_source = attention.attend_source
    # with a state of each sequence
    recurrent_state = recurrent.recurrent_state
    ssm_conv = recurrent.ssm_conv
    ssm_scan = recurrent.ssm_scan
    gated_delta_net = recurrent.gated_delta_net
    linear_attention = recurrent.linear_attention
    ngram_rows = recurrent.ngram_rows

    if not TYPE_CHECKING:  # to type checkers an unknown name is an error anyway

        def __getattr__(self, name: str) -> Any:
            own = op_table.own_op(name)
            if isinstance(own, OwnOp):
                return own_method(self, own)
            known = [*dir(type(self)), *op_table.own_ops()]
            near = meant(name, [name for name in known if not name.startswith("_")])
            hint = f": did you mean g.{near}?" if near else ""
            raise AttributeError(f"g has no {name!r}{hint}", name=None)  # Python would name others, too


op_table.reserve(dir(Builder))


def own_method(g: Any, op: OwnOp) -> Callable[..., Node]:
    """The op bound to a builder: called with its operands in order or by name, and attributes by name."""
    signature = op.declared.with_names()

    def call(*arguments: Any, **named: Any) -> Node:
        try:
            bound = signature.bind(*arguments, **named).arguments
        except TypeError as reason:
            raise located(GraphError(f"[g.{op.name}] {reason}; it takes {signature}"), g) from None
        operands = [bound.pop(name) for name in op.declared.operands]
        node: Node = g.call(op, *operands, **bound)
        return node

    call.__name__ = call.__qualname__ = op.name
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = "\n\n".join(filter(None, (op.help, op.paper)))
    return call
