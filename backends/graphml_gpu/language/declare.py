"""Where variables come into being: in the innermost block that holds all their uses. Knows no targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.walk import blocks_of, expressions_of, walk

Path = tuple[tuple[int, int], ...]
"""Where a statement stands: the blocks around it, outermost first, each with the place in it on the way."""


@dataclass
class _Uses:
    """Of a variable: where it is used, how often it is assigned, whether its first use reads it."""

    paths: list[Path] = field(default_factory=list)
    assigned: int = 0
    read_first: bool = False


def declare(body: list[nodes.Statement]) -> None:
    """Mark the assignments that bring variables into being, and add declarations where there is none."""
    blocks: list[list[nodes.Statement]] = []
    uses: dict[nodes.Variable, _Uses] = {}
    _collect(body, (), blocks, uses)
    missing: dict[int, list[tuple[int, nodes.Variable]]] = {}
    for variable, use in uses.items():
        depth = 0 if use.read_first else _common(use.paths) - 1
        number, place = use.paths[0][depth]
        statement = blocks[number][place]
        if (
            isinstance(statement, nodes.Assign | nodes.Across | nodes.Atomic | nodes.Uniform)
            and _given(statement) is variable
        ):
            statement.declares = True
            variable.mutable = use.assigned > 1
        else:
            variable.mutable = True
            missing.setdefault(number, []).append((place, variable))
    for number, declared in missing.items():
        for place, variable in sorted(declared, key=lambda entry: -entry[0]):
            blocks[number].insert(place, nodes.Declare(variable))


def _collect(
    block: list[nodes.Statement],
    outer: Path,
    blocks: list[list[nodes.Statement]],
    uses: dict[nodes.Variable, _Uses],
) -> None:
    number = len(blocks)
    blocks.append(block)
    for place, statement in enumerate(block):
        path = (*outer, (number, place))
        for variable in _reads(statement):
            use = uses.setdefault(variable, _Uses(read_first=True))
            use.paths.append(path)
        name = _given(statement)
        if name is not None:
            use = uses.setdefault(name, _Uses())
            use.paths.append(path)
            use.assigned += 1
        for inner in blocks_of(statement):
            _collect(inner, path, blocks, uses)


def _reads(statement: nodes.Statement) -> Iterator[nodes.Variable]:
    for expression in expressions_of(statement):
        for part in walk(expression):
            if isinstance(part, nodes.Name) and not part.variable.loop:
                yield part.variable
    if isinstance(statement, nodes.SetLane):
        yield statement.variable


def _given(statement: nodes.Statement) -> nodes.Variable | None:
    match statement:
        case nodes.Assign() | nodes.SetLane():
            return statement.variable
        case nodes.Across() | nodes.Atomic() | nodes.Uniform():
            return statement.result
    return None


def _common(paths: list[Path]) -> int:
    """How many blocks hold all uses."""
    first = paths[0]
    for depth, (number, _) in enumerate(first):
        if any(len(path) <= depth or path[depth][0] != number for path in paths):
            return depth
    return len(first)
