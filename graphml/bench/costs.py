"""Costs of a test: bytes to read, operations, and the shares of memory, compute and overhead in its time.

Knows ops, sizes and measured steps; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphml.backend import StepTime
from graphml.bench.test_plan import Test
from graphml.inspect.profile.profile_table import bound_by
from graphml.ir.graph import Graph
from graphml.ir.work import Work, sizes_at, total, work
from graphml.runtime.programs.executor import Executor

BOUNDS = {"memory": "memory", "arithmetic": "compute", "waiting": "overhead", "calls": "overhead"}


def cost(executor: Executor, test: Test) -> Work:
    """Bytes that the test's steps read, weights and values, and the operations of their products."""
    parts = []
    if test.n_prompt:
        parts.append(_prompt(executor, test))
    if test.n_gen:
        parts.append(_generation(executor, test))
    return total(parts)


def _prompt(executor: Executor, test: Test) -> Work:
    """The cost of prompts; several sequences share steps, which read weights once."""
    graph = executor.programs.compiled_for(executor.n_batch, test.n_parallel).graph
    steps = []
    for start in range(0, test.n_prompt, executor.n_batch):
        count = min(executor.n_batch, test.n_prompt - start)
        steps.append(_step(graph, count, test.n_depth + start))
    work, n_steps = total(steps), -(-test.n_parallel * test.n_prompt // executor.n_batch)
    return Work(work.n_bytes * n_steps // len(steps), work.flops * test.n_parallel)


def _generation(executor: Executor, test: Test) -> Work:
    """All steps as the one in the middle, since the bytes of a step grow linearly with its depth."""
    several = test.n_parallel
    graph = executor.programs.compiled_for(several, several).graph
    middle = test.n_depth + test.n_prompt + (test.n_gen - 1) // 2
    alone, empty = _step(graph, 1, middle), _step(graph, 1, 0)
    together = _step(graph, several, 0, several)  # reads weights once, with nearly no reads of attention
    n_bytes = together.n_bytes + several * (alone.n_bytes - empty.n_bytes)
    flops = together.flops + several * (alone.flops - empty.flops)
    return Work(test.n_gen * n_bytes, test.n_gen * flops)


def _step(graph: Graph, count: int, past: int, outputs: int = 1) -> Work:
    sizes = sizes_at({"T": count, "O": outputs, "S": outputs}, past)
    return total([work(node, sizes) for node in graph.nodes])


def shares(
    taken: Sequence[tuple[Mapping[str, int], Sequence[StepTime]]],
    test: Test,
    whole: float,
    usual: float,
    bandwidth: float,
) -> dict[str, float]:
    """Parts of 1 of `whole` seconds that memory, compute and overhead take.

    taken: of every step its dims and the times of its kernel calls, for a run that took `whole` seconds and
    usually takes `usual`: the kernels' rates are scaled to the usual time. Time outside of calls is overhead.
    """
    parts = dict.fromkeys(("memory", "compute", "overhead"), 0.0)
    kinds: dict[str, _Kind] = {}
    past = test.n_depth
    for dims, times in taken:
        sizes, seen = sizes_at(dims, past), set()
        for step in times:
            node = step.node
            kind = kinds.setdefault(f"{node.op.name} {node.name.rpartition('.')[2]}", _Kind())
            kind.calls += 1
            kind.seconds += sum(step.work_s) / len(step.work_s)
            parts["overhead"] += sum(step.wait_s) / len(step.wait_s)
            if node.name not in seen:  # a node may take several calls, which share its bytes
                seen.add(node.name)
                kind.n_bytes += work(node, sizes).n_bytes
        past += dims.get("T", 1) // test.n_parallel
    for kind in kinds.values():
        speed = kind.n_bytes / kind.seconds * whole / usual if kind.seconds > 0 and usual > 0 else 0.0
        parts[BOUNDS[bound_by(kind.calls, kind.seconds, 0.0, speed, bandwidth)]] += kind.seconds
    parts["overhead"] += max(whole - sum(parts.values()), 0.0)
    return {name: seconds / whole for name, seconds in parts.items()} if whole > 0 else {}


@dataclass
class _Kind:
    """The same node of all layers and steps; the time of a single call is too noisy beside other programs."""

    calls: int = 0
    seconds: float = 0.0
    n_bytes: int = 0
