"""Where variables come into being: in the innermost block that holds all their uses. Knows no targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphml_gpu.language.tree import Across, Assign, Atomic, Declare, Name, SetLane, Statement, Variable
from graphml_gpu.language.walk import blocks_of, expressions_of, walk

Path = tuple[int, ...]
"""The blocks around a statement, outermost first, by number, ending with the block it stands in."""


@dataclass
class _Uses:
    """Of a variable: the blocks, how often it is assigned, whether its first use reads it."""

    paths: list[Path] = field(default_factory=list)
    assigned: int = 0
    read_first: bool = False


def declare(body: list[Statement]) -> None:
    """Mark the assignments that bring variables into being, and add declarations where there is none."""
    blocks: list[list[Statement]] = []
    uses: dict[Variable, _Uses] = {}
    _collect(body, (), blocks, uses)
    homes = {variable: (() if use.read_first else _common(use.paths)) for variable, use in uses.items()}
    for variable, home in homes.items():
        block = blocks[home[-1]] if home else body
        if not _declared_at(block, variable, uses[variable].assigned):
            variable.mutable = True


def _collect(
    block: list[Statement], outer: Path, blocks: list[list[Statement]], uses: dict[Variable, _Uses]
) -> None:
    path = (*outer, len(blocks))
    blocks.append(block)
    for statement in block:
        for variable in _reads(statement):
            use = uses.setdefault(variable, _Uses(read_first=True))
            use.paths.append(path)
        given = _given(statement)
        if given is not None:
            use = uses.setdefault(given, _Uses())
            use.paths.append(path)
            use.assigned += 1
        for inner in blocks_of(statement):
            _collect(inner, path, blocks, uses)


def _reads(statement: Statement) -> Iterator[Variable]:
    for expression in expressions_of(statement):
        for part in walk(expression):
            if isinstance(part, Name) and not part.variable.loop:
                yield part.variable
    if isinstance(statement, SetLane):
        yield statement.variable


def _given(statement: Statement) -> Variable | None:
    match statement:
        case Assign() | SetLane():
            return statement.variable
        case Across() | Atomic():
            return statement.result
    return None


def _common(paths: list[Path]) -> Path:
    shortest = min(paths, key=len)
    for n in range(len(shortest), 0, -1):
        if all(path[:n] == shortest[:n] for path in paths):
            return shortest[:n]
    return ()


def _declared_at(block: list[Statement], variable: Variable, assigned: int) -> bool:
    """Declare in this block; whether the variable is fixed from then on."""
    for i, statement in enumerate(block):
        if isinstance(statement, Assign | Across | Atomic) and _given(statement) is variable:
            statement.declares = True
            variable.mutable = assigned > 1
            return True
        if _touches(statement, variable):
            block.insert(i, Declare(variable))
            return False
    return False


def _touches(statement: Statement, variable: Variable) -> bool:
    if _given(statement) is variable or any(v is variable for v in _reads(statement)):
        return True
    return any(_touches(inner, variable) for block in blocks_of(statement) for inner in block)
