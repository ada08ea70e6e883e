"""Names of nodes, which a model file may choose: escapes them for printing, and suggests similar ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphml.errors import similar
from graphml.passes.llama_cpp_names import OF_A_LAYER, as_ours, spelt


def printable(name: str) -> str:
    """The name with unprintable characters and backslashes escaped; different names stay different."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(
        char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
        for char in name
    )


_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<rest>.+)")  # a tensor's name


def as_node(name: str, known: Iterable[str]) -> str:
    """A name of llama.cpp's, or of a tensor in a layer, as the graph spells it; others stay."""
    match, meant = _TENSOR.fullmatch(name), as_ours(name, known)
    if match is None:
        return meant[0] if meant else spelt(name)
    value = match["rest"]
    return f"layers.{match['layer']}.{OF_A_LAYER.get(value, (value,))[0]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Known names similar to an unknown one, for an error message."""
    names = list(known)
    spelt = as_node(name, names)
    close = [spelt] if spelt in names else similar(spelt, names)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names[:8])}"
