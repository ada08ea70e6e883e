"""Rows of a table by hashes of the last tokens."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer, integers
from graphml_gpu.dispatch import Argument, DeviceView, Dispatch, GpuLowering, Scalar, all_of, rows
from graphml_gpu.kernels.recurrent.ngram import keep_tokens, ngram_rows
from graphml_gpu.lowering.groups import for_elements

_WORD = 0xFFFFFFFF
_LARGEST = 2**31
"""Sizes and rows lie below it: remainders are worked out in 32 bits."""


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    """The rows, then the state: what the first reads of it the second overwrites."""
    state, tokens, sequences, positions = node.inputs
    multipliers = integers(node.attributes, "multipliers")
    count, n_sequences = rows(tokens.shape), rows(state.shape[:1])
    buffers: dict[str, Argument] = {
        "state": state, "tokens": tokens, "sequences": sequences, "positions": positions
    }  # fmt: skip
    constants, grid = for_elements(count)
    constants |= {
        "LOWS": tuple(factor & _WORD for factor in multipliers),
        "HIGHS": tuple(factor >> 32 & _WORD for factor in multipliers),
        "SIZES": integers(node.attributes, "sizes"),
        "OFFSETS": integers(node.attributes, "offsets"),
        "EOS": integer(node.attributes, "eos"),
    }
    groups, state_grid = for_elements(n_sequences)
    scalars: dict[str, Scalar] = {"n": count, "n_sequences": n_sequences}
    return [
        Dispatch(ngram_rows, constants, {**buffers, "out": node}, scalars, grid),
        Dispatch(keep_tokens, {**groups, "KEPT": len(multipliers) - 1}, buffers, scalars, state_grid),
    ]


def _refuses(node: Node) -> str | None:
    sizes, offsets = integers(node.attributes, "sizes"), integers(node.attributes, "offsets")
    if max(map(sum, zip(sizes, offsets, strict=True))) > _LARGEST or min(offsets) < 0:
        return f"no kernel makes rows beyond 2^31; sizes {sizes}, offsets {offsets}"
    eos = integer(node.attributes, "eos")
    return f"wanted the id of a token as eos; got {eos}" if eos < 0 else all_of(node, "f32", "i32")


NGRAM = GpuLowering(("ngram_rows",), _lower, refuses=_refuses)
