"""A stage of a model on a node: parts of its graph, their weights and states, run for another process.

Graphs come as text. Knows devices and graphs; nothing of models or of what other stages compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphml.backend import DeterministicDevice, Program, RowCopies, State, no_progress
from graphml.cluster.model_copies import code_digest
from graphml.compiler.compile import slack_of
from graphml.compiler.row_copies import row_copies
from graphml.ir import text
from graphml.ir.op import Array
from graphml.ir.shape import resolve
from graphml.loading import discovery
from graphml.loading.own_ops import known_ops
from graphml.passes.cut import COPY
from graphml.passes.plan import plan_memory
from graphml.passes.plan_check import check_plan
from graphml.runtime.blocks.state_rows import copy_rows, read_rows, write_rows
from graphml.system.pages import free_memory, fresh


class Stage:
    """An actor. What it holds is named by numbers that it hands out, and weights by the caller's keys.

    halves: values for other stages leave as float16, unless one of them is too large.
    """

    def __init__(self, backend: str, threads: int | None, halves: bool = False) -> None:
        self._device, self._halves = discovery.backend(backend).open(threads), halves
        self._numbers = itertools.count()
        self._weights: dict[str, Array] = {}
        self._programs: dict[int, Program] = {}
        self._states: dict[int, State] = {}
        self._copies: dict[int, RowCopies] = {}

    def facts(self) -> tuple[str, int]:
        """The hash of graphml's code here, and the bytes of memory that are free."""
        return code_digest(), free_memory()

    def make_deterministic(self) -> str:
        """See `graphml.backend.DeterministicDevice`; the order of sums."""
        device = self._device
        assert isinstance(device, DeterministicDevice)
        device.make_deterministic()
        return device.order_of_sums

    def receive(self, key: str, shape: Sequence[int], dtype: np.dtype[Any], offset: int, data: Array) -> None:
        """Some bytes of a weight, from that offset on."""
        if key not in self._weights:
            n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self._weights[key] = fresh(n_bytes, large=True).view(dtype).reshape(tuple(shape))
        self._weights[key].reshape(-1).view(np.uint8)[offset : offset + len(data)] = data

    def lower(self, graph_text: str, keys: Mapping[str, str]) -> int:
        """Make the program of a graph; keys: of its weights by their names in it."""
        graph = text.parse(graph_text, known_ops())
        plan = check_plan(graph, plan_memory(graph, self._device, slack_of(graph)), self._device)
        weights = {name: self._weights[key] for name, key in keys.items()}
        number = next(self._numbers)
        self._programs[number] = self._device.lower(graph, plan, weights, no_progress)
        return number

    def state(self, graph_text: str, dims: Mapping[str, int]) -> tuple[int, int]:
        """A state for the leaves of a graph, and its bytes."""
        number = next(self._numbers)
        state = self._device.state(text.parse(graph_text, known_ops()), dims)
        self._states[number] = state
        return number, state.n_bytes

    def run(
        self,
        number: int,
        dims: Mapping[str, int],
        inputs: Mapping[str, Array],
        state: int | None,
        *before: Mapping[str, Array],
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """One step of a program: its outputs, and by name the values that other stages read.

        before: such values of stages before it; more than the program reads, perhaps.
        """
        program = self._programs[number]
        for values in (inputs, *before):
            for name in values.keys() & program.inputs.keys():
                program.inputs[name][tuple(map(slice, values[name].shape))] = values[name]
        held = _NO_STATE if state is None else self._states[state]
        results = {name: np.array(value) for name, value in program.run(dims, held).items()}
        names = [name for name in results if name.startswith(COPY)]
        passed = {name.removeprefix(COPY): results.pop(name) for name in names}
        return results, {name: _half(value) for name, value in passed.items()} if self._halves else passed

    def array(self, number: int, name: str) -> Array:
        """An array of a state."""
        return np.array(self._states[number].array(name))

    def read_rows(self, number: int, names: Sequence[str], rows: Array) -> dict[str, Array]:
        """As of `graphml.runtime.blocks.state_rows`."""
        return read_rows(self._states[number], names, rows)

    def write_rows(self, number: int, rows: Array, values: Mapping[str, Array]) -> None:
        """Likewise."""
        write_rows(self._states[number], rows, values)

    def copy_rows(self, number: int, names: Sequence[str], source: Array, target: Array) -> None:
        """Likewise."""
        copy_rows(self._states[number], names, source, target)

    def row_copies(self, number: int, names: Sequence[str], count: int) -> int:
        """Memory for copies of rows."""
        copies = next(self._numbers)
        self._copies[copies] = row_copies(self._states[number], names, count)
        return copies

    def of_copies(self, number: int, method: str, *arguments: Any) -> Any:
        """A method of `graphml.backend.RowCopies`."""
        return getattr(self._copies[number], method)(*arguments)

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget programs, states and copies that nobody has any more."""
        for number in numbers:
            for held in (self._programs, self._states, self._copies):
                held.pop(number, None)


def _half(value: Array) -> Array:
    """The array as float16 where that holds all its numbers; who reads it widens it."""
    if value.dtype != np.float32:
        return value
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    return half if np.isfinite(half).all() else value


class _NoState:
    """Of parts without states."""

    n_bytes = 0

    def array(self, name: str) -> Array:
        raise KeyError(name)


_NO_STATE = _NoState()


def windows(
    shapes: Mapping[str, Any], arrays: Mapping[str, Array], dims: Mapping[str, int]
) -> dict[str, Array]:
    """The leading part of each array that a step with these dimensions uses."""
    return {name: arrays[name][tuple(map(slice, resolve(shape, dims)))] for name, shape in shapes.items()}
