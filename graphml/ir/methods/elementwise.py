"""Methods that compute element by element."""

from __future__ import annotations

from graphml.errors import GraphError
from graphml.ir.argument_kinds import CastTo, Extended, Positive
from graphml.ir.arguments import method
from graphml.ir.dtype import as_dtype
from graphml.ir.node import Node
from graphml.ir.ops import elementwise as ops
from graphml.ir.step import StepBuilder


@method
def add(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """a + b, f32 of the shape of a.

    b is broadcast: missing leading dimensions and dimensions of 1 are repeated. Other shapes raise a
    `ShapeError`.

    >>> g.add(x, bias)
    %add: f32[T<=8, 64] = add(%x, %bias)
    """
    return g.record(ops.add, a, b, name=name)


@method
def sub(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """a - b, f32 of the shape of a; b is broadcast as in `add`.

    >>> g.sub(x, bias)
    %sub: f32[T<=8, 64] = sub(%x, %bias)
    """
    return g.record(ops.sub, a, b, name=name)


@method
def mul(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """a * b element by element, f32 of the shape of a; b is broadcast as in `add`.

    For a matrix product see `mul_mat`, for a number `scale`.

    >>> g.mul(g.silu(x), x)
    %mul: f32[T<=8, 64] = mul(%silu, %x)
    """
    return g.record(ops.mul, a, b, name=name)


@method
def div(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """a / b, f32 of the shape of a; b is broadcast as in `add`. Division by 0 returns an infinity or NaN.

    >>> g.div(x, g.sum_rows(x))
    %div: f32[T<=8, 64] = div(%x, %sum_rows)
    """
    return g.record(ops.div, a, b, name=name)


@method
def maximum(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """The larger of a and b, NaN where one is; f32 of the shape of a, b is broadcast as in `add`.

    >>> g.maximum(x, bias)
    %maximum: f32[T<=8, 64] = maximum(%x, %bias)
    """
    return g.record(ops.maximum, a, b, name=name)


@method
def minimum(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """The smaller of a and b, NaN where one is; f32 of the shape of a, b is broadcast as in `add`.

    >>> g.minimum(x, g.absolute(bias))
    %minimum: f32[T<=8, 64] = minimum(%x, %abs)
    """
    return g.record(ops.minimum, a, b, name=name)


@method
def less(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """1.0 where a < b, else 0.0; f32 of the shape of a; b is broadcast as in `add`. 0.0 for NaN.

    >>> g.less(x, bias)
    %less: f32[T<=8, 64] = less(%x, %bias)
    """
    return g.record(ops.less, a, b, name=name)


@method
def less_equal(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """1.0 where a <= b, else 0.0; f32 of the shape of a; b is broadcast as in `add`. 0.0 for NaN.

    >>> g.less_equal(x, bias)
    %less_equal: f32[T<=8, 64] = less_equal(%x, %bias)
    """
    return g.record(ops.less_equal, a, b, name=name)


@method
def equal(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """1.0 where a == b, else 0.0; f32 of the shape of a; b is broadcast as in `add`. 0.0 for NaN.

    >>> g.equal(x, g.max_rows(x))
    %equal: f32[T<=8, 64] = equal(%x, %max_rows)
    """
    return g.record(ops.equal, a, b, name=name)


@method
def where(g: StepBuilder, mask: Node, a: Node, b: Node, name: str | None = None) -> Node:
    """a where the mask is not 0, else b; f32 of the shape of a. mask and b are broadcast as in `add`.

    NaN and infinity in the value that is not chosen have no influence. A mask that is NaN chooses a.

    Positions are values like any other once they are f32: here tokens before position 4 keep their rows,
    later ones have zeros.

    >>> position_T1 = g.reshape(g.cast(g.positions, "f32"), 1)
    >>> g.where(g.less(position_T1, g.constant(4.0)), x, g.constant(0.0))
    %where: f32[T<=8, 64] = where(%less, %x, %constant_1)
    """
    return g.record(ops.where, mask, a, b, name=name)


@method
def cast(g: StepBuilder, x: Node, dtype: CastTo, name: str | None = None) -> Node:
    """x as "f32" or "i32", of the same shape; x itself where it has this dtype.

    i32 to f32: the nearest number. f32 to i32: toward zero; beyond the range the largest or the smallest
    number, 0 for NaN.

    >>> g.cast(g.positions, "f32")
    %cast: f32[T<=8] = cast(%positions)
    """
    to = as_dtype(dtype).name
    return x if x.dtype.name == to else g.record(ops.cast, x, name=name, dtype=to)


@method
def neg(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """-x, f32 of the same shape.

    >>> g.neg(x)
    %neg: f32[T<=8, 64] = neg(%x)
    """
    return g.record(ops.neg, x, name=name)


@method
def scale(g: StepBuilder, x: Node, factor: float, offset: Extended = 0.0, name: str | None = None) -> Node:
    """x * factor + offset by numbers known while the graph is built, f32 of the same shape.

    The offset may be infinite: with factor 0 it makes masks.

    >>> g.scale(x, 64**0.5)
    %scale: f32[T<=8, 64] = scale(%x)
    """
    return g.record(ops.scale, x, name=name, factor=factor, offset=offset)


@method
def clamp(g: StepBuilder, x: Node, low: Extended, high: Extended, name: str | None = None) -> Node:
    """x limited to [low, high], f32 of the same shape. An infinity leaves a side open.

    >>> g.clamp(x, -7.0, float("inf"))
    %clamp: f32[T<=8, 64] = clamp(%x)
    """
    if low > high:
        raise GraphError(f"[g.clamp] wanted low of at most high; got {low} and {high}")
    return g.record(ops.clamp, x, name=name, low=low, high=high)


@method
def silu(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """x * sigmoid(x), also called swish (Elfwing et al. 2017, arXiv:1702.03118).

    >>> g.silu(x)
    %silu: f32[T<=8, 64] = silu(%x)
    """
    return g.record(ops.silu, x, name=name)


@method
def gelu(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415); `gelu_pytorch_tanh`, `gelu_new`.

    >>> g.gelu(x)
    %gelu: f32[T<=8, 64] = gelu(%x)
    """
    return g.record(ops.gelu, x, name=name)


@method
def gelu_erf(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """GELU as defined, by the error function (arXiv:1606.08415); `gelu` in PyTorch.

    >>> g.gelu_erf(x)
    %gelu_erf: f32[T<=8, 64] = gelu_erf(%x)
    """
    return g.record(ops.gelu_erf, x, name=name)


@method
def gelu_quick(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """x * sigmoid(1.702 x), GELU by a sigmoid; `quick_gelu`.

    >>> g.gelu_quick(x)
    %gelu_quick: f32[T<=8, 64] = gelu_quick(%x)
    """
    return g.record(ops.gelu_quick, x, name=name)


@method
def relu(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """x where it is above 0, else 0.

    >>> g.sqr(g.relu(x))
    %sqr: f32[T<=8, 64] = sqr(%relu)
    """
    return g.record(ops.relu, x, name=name)


@method
def exp(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """e to the power of x.

    >>> g.exp(x)
    %exp: f32[T<=8, 64] = exp(%x)
    """
    return g.record(ops.exp, x, name=name)


@method
def log(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The natural logarithm of x; minus infinity at 0, NaN below.

    >>> g.log(g.sum_rows(g.exp(x)))
    %log: f32[T<=8, 1] = log(%sum_rows)
    """
    return g.record(ops.log, x, name=name)


@method
def softplus(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """log(1 + exp(x)); x itself above 20.

    >>> g.softplus(x)
    %softplus: f32[T<=8, 64] = softplus(%x)
    """
    return g.record(ops.softplus, x, name=name)


@method
def absolute(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The magnitude of x.

    >>> g.absolute(x)
    %abs: f32[T<=8, 64] = abs(%x)
    """
    return g.record(ops.absolute, x, name=name)


@method
def sqrt(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The square root of x; NaN below 0.

    >>> g.sqrt(x)
    %sqrt: f32[T<=8, 64] = sqrt(%x)
    """
    return g.record(ops.sqrt, x, name=name)


@method
def sqr(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """x * x.

    >>> g.sqr(x)
    %sqr: f32[T<=8, 64] = sqr(%x)
    """
    return g.record(ops.sqr, x, name=name)


@method
def floor(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The largest whole number of at most x.

    >>> g.floor(x)
    %floor: f32[T<=8, 64] = floor(%x)
    """
    return g.record(ops.floor, x, name=name)


@method
def round(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The whole number nearest to x; half way, the even one.

    >>> g.round(x)
    %round: f32[T<=8, 64] = round(%x)
    """
    return g.record(ops.round_even, x, name=name)


@method
def sigmoid(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """1 / (1 + exp(-x)).

    >>> g.sigmoid(x)
    %sigmoid: f32[T<=8, 64] = sigmoid(%x)
    """
    return g.record(ops.sigmoid, x, name=name)


@method
def tanh(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The hyperbolic tangent of x.

    >>> g.tanh(x)
    %tanh: f32[T<=8, 64] = tanh(%x)
    """
    return g.record(ops.tanh, x, name=name)


@method
def softcap(g: StepBuilder, x: Node, limit: Positive, name: str | None = None) -> Node:
    """tanh(x / limit) * limit: soft limits of logits (Gemma 2, 2024, arXiv:2408.00118).

    >>> g.softcap(x, 30.0, name="capped")
    %capped: f32[T<=8, 64] = scale(%tanh)
    """
    y = g.record(ops.tanh, g.record(ops.scale, x, factor=1.0 / limit))
    return g.record(ops.scale, y, name=name, factor=limit)
