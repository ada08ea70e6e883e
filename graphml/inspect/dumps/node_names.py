"""Names of nodes, which a model file may choose: escapes them for printing, and suggests similar ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphml.errors import similar


def printable(name: str) -> str:
    """The name with unprintable characters and backslashes escaped; different names stay different."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(
        char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
        for char in name
    )


_CALLBACK = re.compile(r"(?P<rest>\w+)-(?P<layer>\d+)")  # a callback's name in llama.cpp: attn_norm-0
_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<rest>.+)")  # a tensor's name
_OURS = {
    "Qcur": "q", "Kcur": "k", "Vcur": "v", "kqv_out": "attention", "ffn_inp": "attn_residual",
    "ffn_gate": "gate", "ffn_up": "up", "ffn_out": "down", "ffn_down": "down", "l_out": "ffn_residual",
}  # fmt: skip


def as_ours(name: str) -> str:
    """A name of llama.cpp's as graphml spells it; others stay."""
    match = _CALLBACK.fullmatch(name) or _TENSOR.fullmatch(name)
    return f"layers.{match['layer']}.{_OURS.get(match['rest'], match['rest'])}" if match else name


def nearest(name: str, known: Iterable[str]) -> str:
    """Known names similar to an unknown one, for an error message."""
    names = list(known)
    spelt = as_ours(name)
    close = [spelt] if spelt in names else similar(spelt, names)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names[:8])}"
