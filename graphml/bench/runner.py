"""Runs tests on graphml: a model opened once, sessions or an engine for each test, and the cost of each.

A cost is bytes to read, operations, and the shares of memory, compute and overhead in the time. Runs in its
own process; see `side` for the reason.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import graphml
from graphml.api.batch import Batch
from graphml.api.model import Model
from graphml.backend import AllocatingDevice, NamedDevice, Progress, StepTime, TimedProgram, no_progress
from graphml.bench.describe import describe_file
from graphml.bench.side import Usage
from graphml.bench.test_plan import SideParameters, Test
from graphml.errors import BackendError, UsageError
from graphml.inspect.profile.mixed_run import endless_engine
from graphml.inspect.profile.profile_table import bound_by
from graphml.ir.work import Work, sizes_at, step_work, total, work
from graphml.runtime.loop.timeline import TimelineStep
from graphml.runtime.programs.executor import Executor
from graphml.system.pages import own_memory

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
        steps.append(step_work(graph, count, test.n_depth + start))
    work, n_steps = total(steps), -(-test.n_parallel * test.n_prompt // executor.n_batch)
    return Work(work.n_bytes * n_steps // len(steps), work.flops * test.n_parallel)


def _generation(executor: Executor, test: Test) -> Work:
    """All steps as the one in the middle, since the bytes of a step grow linearly with its depth."""
    several = test.n_parallel
    graph = executor.programs.compiled_for(several, several).graph
    middle = test.n_depth + test.n_prompt + (test.n_gen - 1) // 2
    alone, empty = step_work(graph, 1, middle), step_work(graph, 1, 0)
    together = step_work(graph, several, 0, several)  # reads weights once, with nearly no reads of attention
    n_bytes = together.n_bytes + several * (alone.n_bytes - empty.n_bytes)
    flops = together.flops + several * (alone.flops - empty.flops)
    return Work(test.n_gen * n_bytes, test.n_gen * flops)


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


ROOM = 256
"""Tokens of the context for what the first sequences generate while the prompts of the last are computed."""
NO_LIMIT_MS = 1e6  # prompts, which are not timed, take whole steps


class EngineDecoding:
    """An engine with room for a test's sequences, each with a prompt of its own, sampled greedily.

    Timed over the steps in which all of them generate: from a step's planning until its sampled tokens are
    delivered, with the time between two steps.
    """

    def __init__(self, model: Model, test: Test) -> None:
        self._test = test
        n_ctx = min(model.n_ctx, test.n_ctx + 1 + ROOM)
        shape = test.n_parallel, max(test.n_depth, 1)
        self._prompts = np.random.default_rng(0).integers(0, model.n_vocab, shape, np.int32)
        self._engine = endless_engine(
            model, n_ctx, max_sequences=test.n_parallel, target_itl_ms=NO_LIMIT_MS, prefix_cache=False
        )

    def run(self, n_gen: int) -> int:
        """Nanoseconds of `n_gen` tokens of every sequence, in steps that all of them share."""
        *others, last = self._prompts
        with self._engine.timeline() as timeline:
            handles = [self._engine.submit(ids) for ids in others]
            self._engine.submit(last, max_tokens=n_gen + 1).result()  # its first token is the prompt's
            for handle in handles:
                handle.cancel()
            for handle in handles:
                handle.result()
            shared = [step for step in timeline.steps if self._is_shared(step)]
        if len(shared) != n_gen:
            raise BackendError(
                f"{self._test.name}: wanted {n_gen} steps with a token of each of {self._test.n_parallel} "
                f"sequences; got {len(shared)}"
            )
        return round(1e9 * (shared[-1].end_s - shared[0].begin_s))

    def _is_shared(self, step: TimelineStep) -> bool:
        return step.n_rows == step.n_generating == self._test.n_parallel

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


PROFILED_TOKENS = 8


class BenchRunner:
    """An open model that runs tests. Its tokens are random, like llama-bench's."""

    def __init__(self, setting: SideParameters, progress: Progress = no_progress) -> None:
        start = time.perf_counter()
        self.model = graphml.load(
            Path(setting.model), setting.opened, setting.threads, kv=setting.kv, place=setting.place,
            gpu_layers=None if setting.gpu_layers < 0 else setting.gpu_layers,
            n_batch=setting.n_ubatch, progress=progress, quant=setting.quant or None,
            arch=Path(setting.arch) if setting.arch else None,
        )  # fmt: skip
        self.load_s = time.perf_counter() - start
        self.compile_s = 0.0
        self.steps: list[int] = []
        self._n_batch = setting.n_batch
        self._batch: Batch | None = None
        self._engine: EngineDecoding | None = None  # of a sampled test, in place of a batch
        self._test = Test(1, 0)
        self._ids = np.zeros(0, np.int32)

    def describe(self) -> dict[str, Any]:
        """The fields of rows about the model and the engine."""
        executor = self.model.executor
        facts = dict(executor.backend.describe())
        return {
            **describe_file(executor.file),
            "engine_version": f"graphml {graphml.__version__}",
            "level": str(facts.get("instruction set", "")),
            "device": self._device(),
            "load_ms": 1e3 * self.load_s,
            "n_vocab": self.model.n_vocab,
        }

    def _device(self) -> dict[str, str] | None:
        """The device's description; None for the host's processor; without a name if it reports none."""
        device, elsewhere = self.model.executor.device, self.model.executor.backend.reads_back
        if isinstance(device, NamedDevice):
            return {"name": device.name, "driver": device.driver, "kind": device.kind}
        return {"name": "", "driver": "", "kind": ""} if elsewhere else None

    def bandwidth(self) -> float:
        """The present bandwidth of the device's own memory in bytes per second; 0 if it is not known."""
        device = self.model.executor.device
        return device.bandwidth() if isinstance(device, NamedDevice) else 0.0

    def prepare(self, test: Test) -> Work:
        """Begin sequences for a test and fill their depth; return the test's cost."""
        self._end()
        if test.n_ctx > self.model.n_ctx:
            raise UsageError(
                f"{test.name}: wanted a model with a context of {test.n_ctx} tokens; {self.model.path.name} "
                f"was trained for {self.model.n_ctx}"
            )
        self._test = test
        self._compile(test)
        if test.sampled:
            self._engine = EngineDecoding(self.model, test)
            return cost(self.model.executor, test)
        self._ids = np.random.default_rng(0).integers(0, self.model.n_vocab, max(test.n_ctx, 1), np.int32)
        self._batch = self.model.batch(test.n_parallel, test.n_ctx, seed=0)
        if test.n_depth:
            self._evaluate(self._ids[test.n_prompt + test.n_gen :])
        return cost(self.model.executor, test)

    def _compile(self, test: Test) -> None:
        """Make the programs of a test, unless they are there, on a clock of their own."""
        start = time.perf_counter()
        programs, several = self.model.executor.programs, test.n_parallel
        if test.n_gen or test.sampled:
            programs.compiled_for(several, several)
        if test.n_prompt or test.n_depth:
            programs.compiled_for(self.model.executor.n_batch, several)
        self.compile_s += time.perf_counter() - start

    def logits(self, ids: Sequence[int], n_prompt: int) -> str:
        """Of a prompt of the first ids and of each further one, float32 in base64; ends the present test."""
        self._end()
        self._compile(Test(n_prompt, len(ids) - n_prompt))
        with self.model.batch(1, len(ids), seed=0) as batch:
            (session,) = batch.sessions
            rows = [session.eval(ids[:n_prompt]), *(session.eval([token]) for token in ids[n_prompt:])]
        return base64.b64encode(np.stack(rows).astype("<f4").tobytes()).decode()

    def usage(self) -> Usage:
        """What this process has used so far."""
        device = self.model.executor.device
        held = device.allocated_bytes if isinstance(device, AllocatingDevice) else 0
        own = own_memory()
        return Usage(own.get("VmRSS", 0), own.get("VmHWM", 0), held, time.process_time(), self.compile_s)

    def run(self) -> int:
        """Run the test once; returns nanoseconds. `steps` are those of its decode steps."""
        return self._run(self._test.n_gen)

    def _run(self, n_gen: int) -> int:
        self.steps = []
        if self._engine is not None:
            return self._engine.run(n_gen)
        assert self._batch is not None
        for session in self._batch.sessions:
            session.rewind(max(self._test.n_depth - 1, 0))
            if self._test.n_depth:  # a recurrent state is computed again here, outside of the measured time
                session.eval(self._ids[-1:])
        start = time.perf_counter_ns()
        if self._test.n_prompt:
            self._evaluate(self._ids[: self._test.n_prompt])
        for token in self._ids[self._test.n_prompt : self._test.n_prompt + n_gen]:
            begin = time.perf_counter_ns()
            self._evaluate([int(token)])
            self.steps.append(time.perf_counter_ns() - begin)
        return time.perf_counter_ns() - start

    def _evaluate(self, ids: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Append the ids to every sequence, n_batch at a time."""
        assert self._batch is not None
        for start in range(0, len(ids), self._n_batch):
            chunk = ids[start : start + self._n_batch]
            if len(self._batch) == 1:
                self._batch.sessions[0].eval(chunk)
            else:
                self._batch.eval([chunk] * len(self._batch))

    def bound(self, bandwidth: float, usual_s: float) -> dict[str, float]:
        """Shares of the time that memory, compute and overhead take, from one run that is timed step by step.

        bandwidth: of memory, in bytes per second. usual_s: seconds that a run usually takes; kernel times are
        scaled by its ratio to this run's time. Empty if the backend's programs cannot be timed.
        """
        test, executor = self._test, self.model.executor
        several = test.n_parallel
        used = [executor.compiled(several, several, None, several)] * (test.n_gen > 0)
        used += [executor.programs.compiled_for(executor.n_batch, several)] * (test.n_prompt > 0)
        programs = [compiled.program for compiled in used]
        timed = [program for program in programs if isinstance(program, TimedProgram)]
        if len(timed) < len(programs):
            return {}
        taken: list[tuple[Mapping[str, int], Sequence[StepTime]]] = []

        def take(dims: Mapping[str, int], times: Callable[[], Sequence[StepTime]]) -> None:
            if not test.sampled or dims["T"] == dims["O"] == several:  # else not one of those timed
                taken.append((dims, times()))

        for program in timed:
            program.time_steps(take)
        try:
            n_gen = min(test.n_gen, PROFILED_TOKENS)
            whole = self._run(n_gen) / 1e9
        finally:
            for program in timed:
                program.time_steps(None)
        alike = not (test.n_prompt and test.n_gen)  # all tokens take the same time
        usual = usual_s * (n_gen / test.n_gen if test.n_gen else 1.0) if alike else whole
        return shares(taken, test, whole, usual, bandwidth)

    def close(self) -> None:
        """Release threads, file and memory."""
        self._end()
        self.model.close()

    def _end(self) -> None:
        """End what the test before was run on."""
        for opened in (self._batch, self._engine):
            if opened is not None:
                opened.close()
        self._batch = self._engine = None
