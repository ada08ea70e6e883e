"""The ops that programs declare, by name, beside those of `graphml.ir.ops`.

A name means one op: a second declaration is an error, unless it is the same line with the same definition, or
interactive.
Knows names and lines of ops; nothing of what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from graphml.errors import GraphError
from graphml.ir import ops
from graphml.ir.op import Op
from graphml.ir.source import Source

_own: dict[str, tuple[Op, Source]] = {}
_reserved: set[str] = set()


def own_ops() -> Mapping[str, Op]:
    """Name -> op."""
    return {name: op for name, (op, _) in _own.items()}


def own_op(name: str) -> Op | None:
    """The declared op of a name."""
    entry = _own.get(name)
    return entry[0] if entry else None


def reserve(names: Iterable[str]) -> None:
    """Names that no op may have: methods of the builder."""
    _reserved.update(names)


def register(op: Op, source: Source, is_like: Callable[[Op], bool]) -> None:
    """Add an op; a `GraphError` where its name means another. is_like: whether an op has its definition."""
    if op.name in ops.table() or op.name in _reserved:
        raise GraphError(f"op {op.name!r} ({source}): graphml has an op or a method of that name")
    known = _own.get(op.name)
    if known is not None:
        other, before = known
        interactive = not Path(source.file).is_file() and not Path(before.file).is_file()
        if before == source and not interactive and not is_like(other):
            raise GraphError(
                f"op {op.name!r} is declared twice at {source}, with two definitions; wanted a name for each "
                "(op(name=...)), or graphml.ops.forget before"
            )
        if before != source and not interactive:
            raise GraphError(f"op {op.name!r} is declared twice: {before} and {source}; wanted one of a name")
    _own[op.name] = op, source


def forget(*names: str) -> None:
    """Remove declared ops by name, so that others can have their names; unknown names are left alone."""
    for name in names:
        _own.pop(name, None)


def declared_in(file: Path) -> list[Op]:
    """The ops that a file declares."""
    return [op for op, source in _own.values() if Path(source.file).resolve() == file]


def forget_file(file: Path) -> None:
    """Remove what a file declares, before it is run again."""
    forget(*(op.name for op in declared_in(file)))
