"""Methods of recurrent layers: ops that keep a state of each sequence between steps.

Knows which state belongs to which op; nothing of other layers.
"""

from __future__ import annotations

from graphml.ir.argument_kinds import Count, Index
from graphml.ir.arguments import method
from graphml.ir.dtype import F32
from graphml.ir.methods.layout import reshape
from graphml.ir.node import Node
from graphml.ir.ops import linear_attention as memory_ops
from graphml.ir.ops import ngram, recurrent, ssm
from graphml.ir.shape import fixed, max_elements
from graphml.ir.step import StepBuilder


@method
def recurrent_state(g: StepBuilder, layer: Index, what: str, *row: Index) -> Node:
    """A state of a layer, f32 [S, *row]; a sequence that begins at position 0 begins with zeros.

    `what` distinguishes the states of a layer.

    >>> g.recurrent_state(3, "conv", 2, 64)
    %cache.3.conv: f32[S<=1, 2, 64] = state()
    """
    return g.state(f"cache.{layer}.{what}", F32, (g.n_sequences, *row))


@method
def ssm_conv(
    g: StepBuilder,
    x: Node,
    weight: Node,
    bias: Node | None,
    layer: Index,
    what: str = "conv",
    name: str | None = None,
) -> Node:
    """Causal depthwise convolution over each sequence: f32 [T, channels] (Mamba, arXiv:2312.00752).

    x f32 [T, channels], weight f32 [channels, d_conv], bias f32 [channels] or None. Not activated. what:
    names the state, if a layer has several convolutions.

    >>> g.ssm_conv(x, g.weight("m", F32, (64, 4)), None, layer=0)
    %ssm_conv: f32[T<=8, 64] = ssm_conv(%cache.0.conv, %x, %m, %sequences, %positions)
    """
    state = recurrent_state(g, layer, what, fixed(weight.shape[1]) - 1, fixed(x.shape[1]))
    extra = () if bias is None else (bias,)
    return g.record(recurrent.ssm_conv, state, x, weight, g.sequences, g.positions, *extra, name=name)


@method
def ssm_scan(
    g: StepBuilder,
    x: Node,
    dt: Node,
    a: Node,
    b: Node,
    c: Node,
    d: Node,
    layer: Index,
    d_state: Count,
    what: str = "ssm",
    name: str | None = None,
) -> Node:
    """The state space of Mamba (arXiv:2312.00752) and Mamba 2 (arXiv:2405.21060): f32 [T, channels].

    x f32 [T, channels]; a: the A, f32 [channels, d_state], or of Mamba 2 [n_head] or [n_head, 1]; dt f32 [T,
    rows of a], before softplus; b, c: f32 [T, n_group * d_state]; d: a factor of x for each row of a. what:
    names the state.

    >>> a, d = g.weight("a", F32, (64, 16)), g.weight("d", F32, (64,))
    >>> g.ssm_scan(x, x, a, g.columns(x, 0, 16), g.columns(x, 16, 32), d, layer=0, d_state=16).type
    f32[T<=8, 64]
    """
    n, channels = fixed(a.shape[0]), fixed(x.shape[1])
    if len(a.shape) == 1:
        a = reshape(g, a, n, 1, keep=0)
    if len(d.shape) != 1:
        d = reshape(g, d, max_elements(d.shape), keep=0)
    heads = 1 if a.shape == (channels, d_state) else n
    state = recurrent_state(g, layer, what, heads, d_state, channels // max(heads, 1))
    operands = (state, x, dt, a, b, c, d, g.sequences, g.positions)
    return g.record(ssm.ssm_scan, *operands, name=name)


@method
def gated_delta_net(
    g: StepBuilder,
    q: Node,
    k: Node,
    v: Node,
    decay: Node,
    beta: Node,
    layer: Index,
    scale: float,
    grouped: bool = False,
    name: str | None = None,
) -> Node:
    """The gated delta rule (arXiv:2412.06464), with a decay for each element too (arXiv:2510.26692).

    q, k f32 [T, G, K], v f32 [T, N, V], decay f32 [T, N, 1] or [T, N, K], beta f32 [T, N, 1]: f32 [T, N, V].
    Decay and beta are factors, most often between 0 and 1. grouped: neighbouring heads of v share keys;
    otherwise heads at a distance of G share them.

    k [T, U, G, K], v [T, U, N, V] and beta [T, U, N, 1]: U updates of the state in each token, one after the
    other (DeltaProduct, arXiv:2502.10297). The decay is applied before the first, the query reads after the
    last. A `ShapeError` for other shapes.

    >>> ones = g.sigmoid(g.sum_rows(q))
    >>> g.gated_delta_net(q, q, q, ones, ones, layer=0, scale=16**-0.5).type
    f32[T<=8, 4, 16]
    >>> q_1, two, beta = g.columns(q, 0, 8), g.reshape(x, 2, 4, 8), g.reshape(g.columns(x, 0, 8), 2, 4, 1)
    >>> g.gated_delta_net(q_1, two, two, ones, beta, layer=1, scale=8**-0.5).type
    f32[T<=8, 4, 8]
    """
    state = _memory(g, layer, q, v)
    operands = (state, q, k, v, decay, beta, g.sequences, g.positions)
    return g.record(memory_ops.gated_delta_net, *operands, name=name, scale=scale, grouped=grouped)


@method
def linear_attention(
    g: StepBuilder,
    q: Node,
    k: Node,
    v: Node,
    layer: Index,
    gates: tuple[Node, ...] = (),
    name: str | None = None,
    scale: float = 1.0,
    slope: float = 0.0,
    before: bool = False,
) -> Node:
    """Linear attention with decay: q, k f32 [T, N, K], v f32 [T, N, V] -> f32 [T, N, V].

    gates: (), (decay,) or (decay, remove, replace), each f32 [T, N, K], decay also [T, N, 1]. Without a decay
    it is e to the minus `slope` times ALiBi's slope of the head (lightning attention, arXiv:2401.04658).
    before: the state is read before the token is added (RWKV-6, arXiv:2404.05892); remove and replace:
    RWKV-7 (arXiv:2503.14456). scale: of the result.

    >>> g.linear_attention(q, q, q, layer=0, slope=0.5).type
    f32[T<=8, 4, 16]
    """
    operands = (_memory(g, layer, q, v), q, k, v, g.sequences, g.positions, *gates)
    return g.record(
        memory_ops.linear_attention, *operands, name=name, scale=scale, slope=slope, before=before
    )


@method
def ngram_rows(
    g: StepBuilder,
    multipliers: tuple[int, ...],
    sizes: tuple[int, ...],
    offsets: tuple[int, ...],
    eos: int,
    name: str | None = None,
) -> Node:
    """Rows of a table by hashes of the last tokens of each sequence, i32 [T, number of sizes] (Qwen4).

    multipliers: one for each hashed token; sizes, offsets: of the parts of the table, as many for pairs of
    tokens as for triples and so on; eos: tokens before it are not hashed.

    >>> g.ngram_rows((1, 3), (7, 11), (0, 7), eos=2)
    %ngram_rows: i32[T<=8, 2] = ngram_rows(%cache.tokens, %tokens, %sequences, %positions)
    """
    state = g.state("cache.tokens", F32, (g.n_sequences, len(multipliers) - 1))
    return g.record(
        ngram.ngram_rows,
        *(state, g.tokens, g.sequences, g.positions),
        name=name,
        multipliers=multipliers,
        sizes=sizes,
        offsets=offsets,
        eos=eos,
    )


def _memory(g: StepBuilder, layer: int, q: Node, v: Node) -> Node:
    """A matrix for each head, from keys to values."""
    return recurrent_state(g, layer, "memory", *map(fixed, (*v.shape[-2:], q.shape[2])))
