"""A mixed run of an engine: sequences that generate, and meanwhile two requests with one long prompt.

Records the steps; knows models and engines, nothing of tables, pictures or files.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import mean, median
from typing import Any

from graphml.api.engine import Engine
from graphml.api.model import Model
from graphml.api.prompt_encoder import PromptEncoder
from graphml.api.request_handle import Handle
from graphml.backend import StepTime, TimedProgram
from graphml.errors import UsageError
from graphml.inspect.profile.profile import N_GEN, N_PROMPT, WARM_UP_TOKENS, text_ids
from graphml.ir.node import Node
from graphml.ir.work import plain_nodes, products
from graphml.runtime.loop.timeline import TimelineStep

WAITS, SAMPLING, BETWEEN = "(waits)", "(inputs and sampling)", "(between steps)"


@dataclass(frozen=True)
class OpTime:
    """Seconds of a step in an op: the median of all steps, the mean of the threads.

    main: a product or attention.
    """

    op: str
    seconds: float
    share: float
    main: bool


class StepShares:
    """Records the runs of the program of an engine's token steps, those with at most n_sequences rows."""

    def __init__(self, model: Model, n_sequences: int) -> None:
        program = model.executor.compiled(n_sequences, n_sequences, None, n_sequences).program
        self._program = program if isinstance(program, TimedProgram) else None
        self._runs: list[Callable[[], Sequence[StepTime]]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Within the block its runs are timed. A program that cannot be timed has none."""
        if self._program is None:
            yield
            return
        self._program.time_steps(self._take)
        try:
            yield
        finally:
            self._program.time_steps(None)

    def _take(self, _: Mapping[str, int], times: Callable[[], Sequence[StepTime]]) -> None:
        self._runs.append(times)

    def of(self, steps: Sequence[TimelineStep]) -> list[OpTime]:
        """The shares of these steps, the largest first; none where nothing was timed."""
        if not self._runs or not steps:
            return []
        op_seconds: dict[str, list[float]] = defaultdict(list)
        main: set[str] = set()
        for times in self._runs:
            of_run: dict[str, float] = defaultdict(float)
            for node_time in times():
                of_run[node_time.node.op.name] += mean(node_time.work_s)
                of_run[WAITS] += mean(node_time.wait_s)
                if is_main(node_time.node):
                    main.add(node_time.node.op.name)
            for op, seconds in of_run.items():
                op_seconds[op].append(seconds)
        taken = {op: median(each) for op, each in op_seconds.items()}
        computed = median(step.compute_s for step in steps)
        whole = median(step.end_s - step.begin_s for step in steps)
        taken[SAMPLING] = max(0.0, computed - sum(taken.values()))
        taken[BETWEEN] = max(0.0, whole - computed)
        rows = [OpTime(op, each, each / whole, op in main) for op, each in taken.items()]
        return sorted(rows, key=lambda row: -row.seconds)


def is_main(node: Node) -> bool:
    """Whether a node is a product or attention, alone or fused with something."""
    return bool(products(node)) or any(part.op.name == "attention" for part in plain_nodes(node))


SHORT = 16
"""Ids in the prompts of the sequences that generate."""
LONG_ARRIVES = 0.25
"""The long prompt arrives when so much of the tokens is generated."""


@dataclass(frozen=True)
class RequestTimes:
    """A request in a mixed run. arrived_s: when it was submitted, token_s: when its tokens were delivered.

    sequence: its number in the steps; n_cached: ids of its prompt that blocks held. Seconds of one clock.
    """

    sequence: int
    n_prompt: int
    n_cached: int
    arrived_s: float
    token_s: tuple[float, ...]

    @property
    def first_s(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.token_s[0] - self.arrived_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between its tokens."""
        return [later - before for before, later in pairwise(self.token_s)]


@dataclass(frozen=True)
class MixedRun:
    """What was run and recorded. target_s: how long a step was to take while a sequence generated.

    shares: of the steps whose rows are all tokens; none of a backend whose programs cannot be timed.
    """

    model: str
    arch: str
    backend: str
    n_sequences: int
    n_prompt: int
    n_gen: int
    target_s: float
    steps: Sequence[TimelineStep]
    requests: Sequence[RequestTimes]
    shares: Sequence[OpTime] = ()


def mixed_run(
    model: Model,
    n_sequences: int,
    n_prompt: int | None = None,
    n_gen: int | None = None,
    target_itl_ms: float = 50.0,
) -> MixedRun:
    """Let sequences generate n_gen tokens each (None: 64); two requests with a prompt of n_prompt ids arrive.

    Both have the same prompt and arrive once a quarter of the first sequence's tokens are there: one computes
    the prompt, the other finds its blocks. Tokens are the most likely ones; an end token ends nothing. The
    engine has room for all; its programs are compiled and warmed up. UsageError for numbers beyond the
    model's context and for models that have no engine.
    """
    n_gen = N_GEN if n_gen is None else n_gen
    if n_prompt is None:
        n_prompt = max(SHORT, min(N_PROMPT, model.n_ctx - n_gen))
    longest = max(n_prompt, SHORT) + n_gen
    if min(n_sequences, n_prompt, n_gen) < 1:
        raise UsageError(
            f"wanted sequences, a prompt and tokens after it to profile; got {n_sequences} sequences, "
            f"{n_prompt} tokens of a prompt, {n_gen} after it"
        )
    if longest > model.n_ctx:
        raise UsageError(
            f"n_prompt: wanted at most {max(model.n_ctx - n_gen, 0)} beside {n_gen} tokens after it: "
            f"the context of {model.path.name} has {model.n_ctx}; got {longest - n_gen}"
        )
    ids = text_ids(model, SHORT * n_sequences + n_prompt)
    short = [ids[SHORT * i : SHORT * (i + 1)] for i in range(n_sequences)]
    long = ids[SHORT * n_sequences :]
    with endless_engine(model, longest, max_sequences=n_sequences + 2, target_itl_ms=target_itl_ms) as engine:
        _warm_up(engine, [*(ids[::-1] for ids in short), long[::-1]])
        shares = StepShares(model, n_sequences + 2)
        with engine.timeline() as timeline, shares.recorded():
            handles, arrived = _run(engine, model.executor.lock, short, long, n_gen)
            results = [handle.result() for handle in handles]
            steps = timeline.steps
    numbers = sorted({rows.sequence for step in steps for rows in step.rows})  # as they were submitted
    requests = [
        RequestTimes(number, result.n_prompt, result.n_cached, at, _token_times(steps, number))
        for number, result, at in zip(numbers, results, arrived, strict=True)
    ]
    return MixedRun(
        model.path.name, model.arch, model.executor.backend.name, n_sequences, n_prompt, n_gen,
        target_itl_ms / 1000, steps, requests,
        shares.of([step for step in steps if step.n_rows == step.n_generating > 0]),
    )  # fmt: skip


def endless_engine(model: Model, n_ctx: int, **options: Any) -> Engine:
    """An engine whose sequences never end by themselves: it has no tokenizer, so no end tokens and no text.

    options: as of `Model.engine`.
    """
    return Engine(model.executor, PromptEncoder(), n_ctx, **options)


def _run(
    engine: Engine,
    lock: AbstractContextManager[object],
    short: Sequence[Sequence[int]],
    long: Sequence[int],
    n_gen: int,
) -> tuple[list[Handle], list[float]]:
    """Submit everything in its time; the requests, and when each was submitted."""
    arrived: list[float] = []

    def submit(ids: Sequence[int]) -> Handle:
        arrived.append(time.monotonic())
        return engine.submit(ids, max_tokens=n_gen)

    def together(prompts: Sequence[Sequence[int]]) -> list[Handle]:
        with lock:  # no step runs meanwhile: on a busy machine the first could end before the last is there
            return [submit(ids) for ids in prompts]

    handles = together(short)
    for _ in islice(handles[0], max(1, int(LONG_ARRIVES * n_gen))):
        pass
    return handles + together([long, long]), arrived


def _warm_up(engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    """Steps of every size, with prompts that the run does not have."""
    for handle in [engine.submit(ids, max_tokens=WARM_UP_TOKENS) for ids in prompts]:
        handle.result()


def _token_times(steps: Sequence[TimelineStep], sequence: int) -> tuple[float, ...]:
    return tuple(
        step.end_s for step in steps for rows in step.rows if rows.sequence == sequence and rows.samples
    )
