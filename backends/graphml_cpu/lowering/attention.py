"""Paged attention: tiles of tokens; with one token a sequence, chunks of its cache for all threads."""

from __future__ import annotations

from functools import partial

from graphml.ir.dtype import F32
from graphml.ir.node import Node
from graphml.ir.op import integer, number
from graphml.ir.ops.attention import causal, extras
from graphml.ir.shape import bounds
from graphml.ir.state_order import state_of
from graphml_cpu import target
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import (
    PREFILL_VECTORS,
    SHARING_ROWS,
    attention_partial_bytes,
    prefill_scratch_bytes,
    shared_notes_bytes,
    shared_scratch_bytes,
)
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    CpuWorkspace,
    KernelCall,
    Scratch,
    cache_type,
    rows,
)


def _token_each(node: Node) -> bool:
    """Whether no more tokens come than there are sequences: then none of them share what they read."""
    return bounds(node.shape)[0] <= bounds(node.inputs[5].shape)[0]


def product_dtype(node: Node) -> str:
    """What products of attention are of: for many tokens of bfloat16, twice as many an instruction.

    A cache of float32 keeps all bits.
    """
    k, v = node.inputs[1:3]
    pairs = target.current().has_bf16 and bounds(k.shape)[2] % 2 == 0
    return "bf16" if pairs and not _token_each(node) and F32 not in (k.dtype, v.dtype) else "f32"


def _alone(node: Node) -> int:
    """How many rows that stand alone beside chunks of other sequences are computed as decoding does."""
    n_sequences = bounds(node.inputs[5].shape)[0]
    return 0 if n_sequences == 1 or _token_each(node) else n_sequences


def _decoded(node: Node) -> int:
    """How many rows decoding computes at most."""
    return bounds(node.shape)[0] if _token_each(node) else _alone(node)


def _shares(node: Node) -> bool:
    """Whether sequences that begin alike are looked for: where several rows fit into the lanes of a tile."""
    group = bounds(node.shape)[1] // bounds(node.inputs[2].shape)[1]
    lanes = PREFILL_VECTORS * target.current().f32_lanes
    return _decoded(node) >= SHARING_ROWS and 2 * group <= lanes


def _notes(node: Node) -> int:
    return shared_notes_bytes(_decoded(node)) if _shares(node) else 0


def _workspace(node: Node, threads: int) -> int:
    _, n_head, d_v = bounds(node.shape)
    return _notes(node) + attention_partial_bytes(_decoded(node), n_head, d_v)


def _seen(node: Node) -> dict[str, Argument]:
    """What every form wants to know of the tokens and of what they see."""
    positions, sequences = node.inputs[3:5]
    lengths = extras(node.inputs, node.attributes)[1]
    return {
        "positions": positions,
        "sequences": sequences,
        "lengths": 0 if lengths is None else lengths,
        "n_head": bounds(node.shape)[1],
        "window": integer(node.attributes, "window") or -integer(node.attributes, "chunk"),
        "causal": int(causal(node.attributes)),
        **table_sizes(node),
        "rows": rows(node.shape[:1]),
    }


def table_sizes(node: Node) -> dict[str, Argument]:
    """The rows of the block table, and the positions that each has cells for."""
    n_sequences, n_blocks = node.inputs[5].shape
    room = rows((n_blocks, integer(node.attributes, "block_size")))
    return {"n_sequences": rows((n_sequences,)), "room": room}


def _scored(node: Node) -> dict[str, Argument]:
    """Queries, cache and how scores are made."""
    q, k, v = node.inputs[:3]
    block_table = node.inputs[5]
    _, n_head, d_k = bounds(q.shape)
    return {
        "q": q,
        "k_cache": k,
        "v_cache": v,
        "block_table": block_table,
        "n_head_kv": bounds(v.shape)[1],
        "n_cells": rows(k.shape[:1]),
        "block_size": int(number(node.attributes, "block_size")),
        "table_stride": bounds(block_table.shape)[1],
        "scale": number(node.attributes, "scale"),
        "softcap": number(node.attributes, "softcap"),
        "max_bias": number(node.attributes, "max_bias"),
        "q_stride": 4 * n_head * d_k,
    }


def _result(node: Node) -> dict[str, Argument]:
    _, n_head, d_v = bounds(node.shape)
    sinks = extras(node.inputs, node.attributes)[0]
    return {
        "sinks": 0 if sinks is None else sinks,
        "out": node,
        "out_stride": 4 * n_head * d_v,
    }


def _lower(node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
    named, form = cache_form(node)
    _, _, d_k, d_v = form
    if not _token_each(node) and one_order:
        return [_by_token(node)]
    if not _token_each(node):
        scratch: dict[str, Argument] = {
            "scratch": Scratch(prefill_scratch_bytes(d_k, d_v)),
            "scratch_bytes": 0,  # each thread is given its own already
        }
        pairs = node.attributes["product_dtype"] == "bf16" and d_k % 2 == 0
        tiled = KernelRef(
            f"attention_prefill-{named}{'-bf16' if pairs else ''}",
            "graphml_cpu.kernels.attention.prefill",
            "make_attention_prefill",
            (*form, pairs),
        )
        tiles = KernelCall(
            tiled, {**_seen(node), **_scored(node), **_result(node), **scratch, "alone": _alone(node)}
        )
        return _with_rows_alone(node, tiles) if _alone(node) else [tiles]
    return _by_chunks(node, _shares(node) and not one_order)


def _with_rows_alone(node: Node, tiles: KernelCall) -> list[KernelCall]:
    *chunks, joined = _by_chunks(node, _shares(node))
    return [*chunks, tiles, joined]


def _by_chunks(node: Node, shares: bool) -> list[KernelCall]:
    """Positions that tokens share, chunks of what each token sees, then their sum."""
    named, form = cache_form(node)
    alone: dict[str, Argument] = {"alone": _alone(node), "notes_bytes": _notes(node) if shares else 0}
    module, partial = "graphml_cpu.kernels.attention.decode", {"partial": CpuWorkspace(node)}
    first = KernelRef(f"attention_partial-{named}", module, "make_attention_partial", form)
    second = KernelRef(f"attention_combine-{form[-1]}", module, "make_attention_combine", (form[-1],))
    shared = [_by_prefix(node, alone)] if shares else []
    return [
        *shared,
        KernelCall(
            first, {**_seen(node), **_scored(node), **partial, **alone}, writes=("partial",), split=True
        ),
        KernelCall(second, {**_seen(node), **_result(node), **partial, **alone}),
    ]


def _by_prefix(node: Node, alone: dict[str, Argument]) -> KernelCall:
    """What tokens share of what they see, once for all of them."""
    named, form = cache_form(node)
    module = "graphml_cpu.kernels.attention.shared_prefix"
    ref = KernelRef(f"attention_shared-{named}", module, "make_attention_shared", form)
    scratch = Scratch(shared_scratch_bytes(*form[2:], _decoded(node)))
    own: dict[str, Argument] = {"partial": CpuWorkspace(node), "scratch": scratch}
    return KernelCall(ref, {**_seen(node), **_scored(node), **own, **alone}, writes=("partial",), split=True)


def _by_token(node: Node) -> KernelCall:
    """Every token by itself, as decoding has it."""
    named, form = cache_form(node)
    group = bounds(node.shape)[1] // bounds(node.inputs[2].shape)[1]
    ref = KernelRef(
        f"attention_by_token-{named}",
        "graphml_cpu.kernels.attention.token_rows",
        "make_attention_by_token",
        form,
    )
    scratch = Scratch(attention_partial_bytes(1, group, form[-1]))
    return KernelCall(ref, {**_seen(node), **_scored(node), **_result(node), "scratch": scratch})


def cache_form(node: Node) -> tuple[str, tuple[str, str, int, int]]:
    """What kernels of a node of attention are made for, in their name and as arguments of their factory.

    That is the types of keys and of values, the elements of a key and of a value.
    """
    k, v = node.inputs[1:3]
    kinds, sizes = (k.dtype.name, v.dtype.name), (bounds(k.shape)[2], bounds(v.shape)[2])
    return "-".join(map(str, (*dict.fromkeys(kinds), *sizes))), (*kinds, *sizes)


def refuses_caches(node: Node) -> str | None:
    """Why no kernel reads the caches of a node of attention, its second and third operand."""
    return next(filter(None, map(_refuses_cache, node.inputs[1:3])), None)


def _refuses_cache(cache: Node) -> str | None:
    """States alone have a row of zeros behind the last."""
    return cache_type(cache) or (None if state_of(cache) is not None else f"{cache.name} is no state")


ATTENTION = CpuLowering(
    ("attention",),
    _lower,
    refuses=refuses_caches,
    workspace=_workspace,
    replicable=True,
    one_order=partial(_lower, one_order=True),
)
