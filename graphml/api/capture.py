"""What a session, or a request of an engine, captures and patches: names and patterns become compile options.

Knows names of values and compile options; nothing of tokens. `CapturedRows` has the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeAlias

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.ir.shape import Symbol, fixed
from graphml.options.argument_checks import items_of, mapping_of, text_of
from graphml.passes.patch import Function, Patch, hits_of, patch, values
from graphml.runtime.blocks.captured_rows import CapturedRows
from graphml.runtime.blocks.row_patches import PatchPoint, PatchRows
from graphml.runtime.programs.executor import Executor

Patterns: TypeAlias = str | Sequence[str]
Patches: TypeAlias = Mapping[str, Function | PatchRows]


class Probe:
    """What is captured and patched, checked.

    capture: names or patterns of nodes as built. patches: name or pattern -> function, or rows. history:
    whether the values of every evaluation are wanted, not of the latest alone. A UsageError names the pattern
    that finds nothing. options: how programs are compiled otherwise; None: as the executor's. points: of
    programs that requests with other functions share, by pattern; None: there are none. positions: of
    the tokens whose rows are captured; None: all.
    rows: gets what is captured. captures: whether there are any values. row_bytes: name of a captured value
    -> bytes of a row. watch: gets the outputs of each step.
    """

    def __init__(
        self,
        executor: Executor,
        capture: Patterns = (),
        patches: Patches | None = None,
        history: bool = False,
        options: CompileOptions | None = None,
        points: MutableMapping[str, PatchPoint] | None = None,
        positions: Collection[int] | None = None,
    ) -> None:
        self.keeps_history, self.rows = history, CapturedRows()
        self.watch: Callable[[Mapping[str, Array]], None] | None = None
        self._executor, self.row_bytes = executor, dict[str, int]()
        self.captures = False
        self.options = options = options or executor.options
        wanted = [capture] if isinstance(capture, str) else items_of("capture", capture, "names or patterns")
        self.patches: Patches = mapping_of(
            "patch", {} if patches is None else patches, "a mapping from names to functions"
        )
        if not wanted and not self.patches:
            return
        value_patches = tuple(
            Patch(pattern, _point(pattern, function, points)) for pattern, function in self.patches.items()
        )
        known = {node.name: node for node in values(patch(executor.build(1, 1), value_patches))}
        for pattern, function in self.patches.items():
            if isinstance(function, PatchRows):
                for name in hits_of("patch", pattern, known):
                    function.check(pattern, name, known[name].shape[1:])
        symbols: dict[str, str | None] = {}
        # Whether a value has rows of tokens or of outputs shows where these are not the same.
        rows = known | {node.name: node for node in values(executor.build(2, 1))}
        for text in wanted:
            pattern = text_of("capture", text)
            for name in hits_of("capture", pattern, known):
                shape = rows[name].shape
                symbols[name] = shape[0].name if shape and isinstance(shape[0], Symbol) else None
                self.row_bytes[name] = rows[name].dtype.bytes_for(math.prod(map(fixed, shape[1:])))
        self.captures, self.rows = bool(symbols), CapturedRows(symbols, positions)
        self.options = replace(options, keep=(*options.keep, *symbols), patch=value_patches)

    def copy(self) -> Probe:
        """The same for another session; nothing collected yet."""
        probe = copy(self)
        probe.watch, probe.rows = None, copy(self.rows)
        probe.rows.begin()
        return probe

    def close(self) -> None:
        """Give back the programs that no other session can use."""
        if self.options.patch:
            self._executor.programs.forget(self.options)


def _point(
    pattern: str, function: Function | PatchRows, points: MutableMapping[str, PatchPoint] | None
) -> PatchPoint:
    if not callable(function) and not isinstance(function, PatchRows):
        raise UsageError(
            f"patch {pattern!r}: wanted a function of an array, or graphml.PatchRows(rows); "
            f"got {function!r:.80}"
        )
    if points is None:
        return PatchPoint(function)
    return points.setdefault(text_of("patch", pattern), PatchPoint())
