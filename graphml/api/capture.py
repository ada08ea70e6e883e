"""What a session captures and patches: patterns of node names become compile options, outputs become arrays.

Knows names and arrays; nothing of tokens.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeAlias

from numpy import concatenate

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError, did_you_mean
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.options.argument_checks import items_of, mapping_of, text_of
from graphml.passes.patch import Function, Patch, patch, values
from graphml.runtime.programs.executor import Executor

Patterns: TypeAlias = str | Sequence[str]
Patches: TypeAlias = Mapping[str, Function]

_PREFIX = "value:"


class Probe:
    """Collects the captured values of a session's steps.

    capture: names or patterns of nodes as built. patches: name or pattern -> function. history: whether the
    values of every evaluation are wanted, not of the latest alone. A UsageError names the pattern that finds
    nothing. options: how the session's programs are compiled otherwise; None: as the executor's. captures:
    whether there are any values. watch: gets the outputs of each step.
    """

    def __init__(
        self,
        executor: Executor,
        capture: Patterns = (),
        patches: Patches | None = None,
        history: bool = False,
        options: CompileOptions | None = None,
    ) -> None:
        self.keeps_history = history
        self.watch: Callable[[Mapping[str, Array]], None] | None = None
        self._executor, self._chunks = executor, list[dict[str, Array]]()
        self._symbols: dict[str, str | None] = {}
        self.captures = False
        self.options = options = options or executor.options
        wanted = [capture] if isinstance(capture, str) else items_of("capture", capture, "names or patterns")
        functions = mapping_of(
            "patch", {} if patches is None else patches, "a mapping from names to functions"
        )
        if not wanted and not functions:
            return
        value_patches = tuple(
            Patch(pattern, _callable(pattern, function)) for pattern, function in functions.items()
        )
        graph = patch(executor.build(1, 1), value_patches)
        known = {node.name: node for node in values(graph)}
        for text in wanted:
            pattern = text_of("capture", text)
            hits = [pattern] if pattern in known else fnmatch.filter(known, pattern)
            if not hits:
                hint = did_you_mean(pattern, list(known))
                raise UsageError(f"capture: no value of the graph is called {pattern!r}.{hint}")
            self._symbols |= dict.fromkeys(hits)
        self.captures = bool(self._symbols)
        if self.captures:
            # Whether a value has rows of tokens or of outputs shows where these are not the same.
            rows = known | {node.name: node for node in values(executor.build(2, 1))}
            for name in self._symbols:
                first = rows[name].shape[0] if rows[name].shape else None
                self._symbols[name] = first.name if isinstance(first, Symbol) else None
        self.options = replace(options, keep=(*options.keep, *self._symbols), patch=value_patches)

    def copy(self) -> Probe:
        """The same for another session; nothing collected yet."""
        probe = copy(self)
        probe.watch = None
        probe.begin()
        return probe

    def begin(self) -> None:
        """An evaluation begins."""
        self._chunks = []

    def take(self, outputs: Mapping[str, Array]) -> None:
        """Copy what one step of the evaluation gave."""
        if self.watch is not None:
            self.watch(outputs)
        if self.captures:
            self._chunks.append({name: outputs[_PREFIX + name].copy() for name in self._symbols})

    def finish(self, of_rows: bool) -> dict[str, Array] | None:
        """What an evaluation that is done gave: its steps joined along the tokens where a value has them.

        of_rows: and along the rows that gave logits, which were many of each step.
        None where nothing is captured.
        """
        if not self._chunks:
            return None
        joined = ("T", "O") if of_rows else ("T",)
        return {
            name: concatenate([chunk[name] for chunk in self._chunks])
            if symbol in joined and len(self._chunks) > 1
            else self._chunks[-1][name]
            for name, symbol in self._symbols.items()
        }

    def close(self) -> None:
        """Give back the programs that no other session can use."""
        if self.options.patch:
            self._executor.programs.forget(self.options)


def _callable(pattern: str, function: Function) -> Function:
    if not callable(function):
        raise UsageError(f"patch {pattern!r}: wanted a function of an array, got {function!r}")
    return function
