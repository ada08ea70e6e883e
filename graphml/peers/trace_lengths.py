"""Lengths of a text for which the traced module's Python may compute otherwise than for the traced one.

`torch.export` notes as guards what its trace took for granted of the length. Where a guard does not hold,
the module's own logits show whether that matters. Knows guards; nothing of what is traced.
"""

from __future__ import annotations

import inspect
from typing import Any

MOST = 4096  # tokens of the longest text whose logits are recorded
LENGTHS = 4  # that are recorded beside the usual ones


def other_lengths(exported: Any, module: Any, traced: int, most: int) -> dict[int, str]:
    """Lengths near the traced one, each with the first guard that does not hold for it, as text."""
    lengths_by: dict[int, str] = {}
    symbol, guards = _guards(exported)
    known: set[str] = set()
    for guard in guards:
        if str(guard.expr) in known or {str(free) for free in guard.expr.free_symbols} != {symbol}:
            continue
        known.add(str(guard.expr))
        below = range(traced - 1, 1, -1)
        above = [*range(traced + 1, traced + 65), *(1 << i for i in range(7, 13)), min(most, MOST)]
        for lengths in (below, [length for length in above if traced < length <= most]):
            first = next((length for length in lengths if not _holds(guard.expr, length)), None)
            if first is not None:
                lengths_by.setdefault(first, _told(module, guard, symbol))
    return dict(list(lengths_by.items())[:LENGTHS])


def _guards(exported: Any) -> tuple[str, list[Any]]:
    """The symbol of the length, and what was taken for granted; nothing if the length is a number."""
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        sizes = [size for size in getattr(value, "shape", ()) if not isinstance(size, int)]
        if node.op == "placeholder" and sizes:
            return str(sizes[0]), list(value.fake_mode.shape_env.guards)
    return "", []


def _holds(expression: Any, length: int) -> bool:
    (symbol,) = expression.free_symbols
    return bool(expression.subs({symbol: length}))


def _told(module: Any, guard: Any, symbol: str) -> str:
    """The line of the model that asked, with the first module that has it; else the guard."""
    frame = guard.sloc.framework_loc
    if not hasattr(frame, "filename") or "/torch/" in frame.filename:
        return str(guard.expr).replace(symbol, "T")
    paths = (name for name, submodule in module.named_modules() if _has_line(type(submodule), frame))
    path = next(paths, "").removeprefix("wrapped").lstrip(".")
    line = (frame.line or "").strip()
    return f"`{line}` in {path or 'the model itself'} ({frame.filename}:{frame.lineno})"


def _has_line(kind: type, frame: Any) -> bool:
    """Whether the source of a class has a line."""
    try:
        if inspect.getsourcefile(kind) != frame.filename:
            return False
        lines, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return False
    return int(frame.lineno) in range(first, first + len(lines))
