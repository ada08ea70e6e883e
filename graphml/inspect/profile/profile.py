"""Profiler: measures the time of a prompt and of the tokens after it, step by step.

Knows models and timed programs; nothing of tables, files or terminals (see `profile_table` and `trace`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from graphml.api.model import Model
from graphml.api.session import Session
from graphml.backend import EncodingProgram, StepTime, TimedProgram
from graphml.compiler.compile import Compiled
from graphml.errors import BackendError, UsageError
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.without_weights import describe_model
from graphml.inspect.profile.measured import (
    MeasuredRun,
    MeasuredSample,
    MeasuredStage,
    Profile,
    ProfileEntry,
    Span,
    overlays,
)
from graphml.inspect.profile.phases import (
    DETOKENISATION,
    OTHER,
    SAMPLING,
    TOKENISATION,
    NodePlace,
    kinds,
    place_of,
    places,
)
from graphml.ir.work import Work, sizes_at, total, work

TEXT = (
    "In the morning the two engineers walked along the river and talked about bridges. One of them, who had "
    "built 17 of them in 1998 alone, said that a good bridge is one that nobody notices; the other "
    'disagreed: "People should see how it carries them." '
)
"""The text of prompts: plain English, as far as the vocabulary has it. No prompt of a user is needed."""
N_PROMPT = 512
N_GEN = 64
WARM_UP_TOKENS = 4
ENCODED = 5
"""How often a step is run to measure the cost of submitting it to a device."""


def profile(
    model: Model,
    n_prompt: int | None = None,
    n_gen: int | None = None,
    rounds: int = 3,
    ids: Sequence[int] | None = None,
) -> Profile:
    """Evaluate a prompt of n_prompt tokens `rounds` times, then generate n_gen tokens, everything timed.

    ids: of the prompt, n_prompt of them; None: those of some English.

    n_prompt None: 512, or as many as the context has room for. Either number may be 0; n_gen None: 64, or 0
    for a model without causal attention, which does not continue a text. Programs are compiled and warmed up
    before. The tokens are always the most likely ones; an end token does not stop the run. No other session
    may run meanwhile.
    Raises UsageError for numbers beyond the model's context and for n_gen of a model without causal
    attention, BackendError for a backend whose programs cannot be timed.
    """
    continues = model.executor.architecture.causal
    if n_gen is None:
        n_gen = N_GEN if continues else 0
    if n_gen and not continues:
        raise UsageError(
            f"profile: {model.arch} does not continue a text token by token, for its tokens see those after "
            f"them; wanted 0 tokens after the prompt, got {n_gen}"
        )
    room = model.n_ctx - n_gen - WARM_UP_TOKENS
    if n_prompt is None:
        n_prompt = max(1, min(N_PROMPT, room))
    n_ctx = max(n_prompt, 1) + n_gen + WARM_UP_TOKENS
    if n_prompt < 0 or n_gen < 0 or rounds < 1 or n_prompt + n_gen == 0:
        raise UsageError(
            f"wanted tokens to profile; got {n_prompt} of a prompt, {n_gen} after it, {rounds} rounds"
        )
    if n_ctx > model.n_ctx:
        raise UsageError(
            f"n_prompt: wanted at most {max(room, 0)} beside {n_gen} tokens after it "
            f"and {WARM_UP_TOKENS} to warm up: {model.path.name} has a context of {model.n_ctx}; "
            f"got {n_prompt}"
        )
    with model.session(n_ctx, seed=0) as session, _Recorder(model, session, n_prompt > 1) as recorder:
        stages = []
        if n_prompt:
            prompt = text_ids(model, n_prompt) if ids is None else list(ids)
            stages.append(recorder.prompt(prompt, rounds))
        else:
            session.eval(text_ids(model, 1))
        if n_gen:
            stages.append(recorder.generation(n_gen))
        return Profile(
            model.path.name, model.arch, model.executor.backend.name, recorder.threads, n_prompt, n_gen,
            dict(recorder.decode.fusions.counts), tuple(stages),
        )  # fmt: skip


def text_ids(model: Model, count: int) -> list[int]:
    """`count` tokens of a text, or arbitrary ones without a vocabulary."""
    ids: list[int] = []
    if model.tokenizer is not None:
        ids = model.encode(TEXT * (count // 16 + 1))
    if len(ids) < count:
        ids = np.random.default_rng(0).integers(0, model.n_vocab, count).tolist()
    return ids[:count]


class _Recorder:
    """A session whose programs are timed while it is entered."""

    def __init__(self, model: Model, session: Session, prompt: bool) -> None:
        self._model, self._session = model, session
        self.decode = model.executor.compiled(1, 1)
        self._batch = model.executor.compiled(model.executor.n_batch, 1) if prompt else self.decode
        self._programs: list[TimedProgram] = []
        for compiled in (self.decode, self._batch):
            if not isinstance(compiled.program, TimedProgram):
                name = model.executor.backend.name
                raise BackendError(f"backend {name!r}: its programs do not tell the time of their steps")
            self._programs.append(compiled.program)
        self._sample = MeasuredSample()
        self.threads = 1

    def __enter__(self) -> _Recorder:
        for program in self._programs:
            program.time_steps(self._take)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for program in self._programs:
            program.time_steps(None)

    def _take(self, dims: Mapping[str, int], times: Callable[[], Sequence[StepTime]]) -> None:
        runs = self._sample.runs
        before = sum(run.dims["T"] for run in runs)
        runs.append(MeasuredRun(dims, self._session.n_past + before, times))

    @contextmanager
    def _sampled(self) -> Iterator[MeasuredSample]:
        self._sample = MeasuredSample(time.perf_counter())
        yield self._sample
        self._sample.end_s = time.perf_counter()

    @contextmanager
    def _outside(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._sample.outside.append(Span(phase, begin, time.perf_counter() - begin))

    def prompt(self, ids: list[int], rounds: int) -> MeasuredStage:
        """Run the prompt `rounds` times after a warm-up; it is then in the session's cache."""
        samples = []
        tokenizer = self._model.tokenizer
        text = None if tokenizer is None else tokenizer.decode(ids)
        for _ in range(rounds + 1):
            self._session.rewind(0)
            with self._sampled() as sample:
                if text is not None:
                    with self._outside(TOKENISATION):
                        self._model.encode(text)
                self._session.eval(ids)
            samples.append(sample)
        return self._stage("prompt", len(ids), samples[1:], self._batch)

    def generation(self, count: int) -> MeasuredStage:
        """Generate `count` tokens after those in the session, the most likely each time."""
        tokenizer = self._model.tokenizer
        stream = None if tokenizer is None else tokenizer.stream()
        samples = []
        for _ in range(count + WARM_UP_TOKENS):
            with self._sampled() as sample:
                with self._outside(SAMPLING):
                    token = self._session.sample()
                if stream is not None:
                    with self._outside(DETOKENISATION):
                        stream.push(token)
                self._session.eval([token])
            samples.append(sample)
        stage = self._stage("generation", 1, samples[WARM_UP_TOKENS:], self.decode)
        return dataclasses.replace(stage, encode_s=self._encode_s(token))

    def _encode_s(self, token: int) -> float | None:
        """Run the last token again, not timed: the cost of submitting its step to an asynchronous device."""
        program, seconds = self.decode.program, []
        if not isinstance(program, EncodingProgram):
            return None
        self._stop()
        for _ in range(ENCODED):
            self._session.rewind(self._session.n_past - 2)
            self._session.eval([token])  # restores a recurrent state too
            self._session.eval([token])
            seconds.append(program.encode_s)
        return float(np.median(seconds))

    def _stage(
        self, name: str, tokens: int, samples: list[MeasuredSample], compiled: Compiled
    ) -> MeasuredStage:
        known = places(compiled.graph)
        entries = _entries(samples, known)
        column = {(entry.op != "", entry.name): i for i, entry in enumerate(entries)}
        spent = np.zeros((2, len(samples), len(entries)))
        for row, sample in enumerate(samples):
            for node, worked, waited in sample.mean_steps():
                spent[:, row, column[True, node.name]] += worked, waited
            for span in sample.outside:
                spent[0, row, column[False, span.phase]] += span.seconds
        seconds = np.array([sample.seconds for sample in samples])
        spent[0, :, column[False, OTHER]] += seconds - spent.sum(axis=(0, 2))
        self.threads = max([self.threads, *(len(s.work_s) for s in samples[-1].runs[-1].steps)])
        steps = [step for run in samples[-1].runs for step in run.steps if step.barrier]
        layers = kinds(compiled.graph)
        in_layers = sum(1 for step in steps if place_of(step.node, known).layer is not None)
        return MeasuredStage(
            name, tokens, samples, entries, seconds, spent[0], spent[1], layers, len(steps),
            in_layers / max(len(layers), 1),
        )  # fmt: skip


def _entries(samples: list[MeasuredSample], known: Mapping[str, NodePlace]) -> list[ProfileEntry]:
    """The phases outside the graph and every node that ran, with the work of the median sample."""
    nodes = {node.name: node for sample in samples for node, _, _ in sample.mean_steps()}
    parts: dict[str, list[Work]] = {name: [] for name in nodes}
    calls = dict.fromkeys(nodes, 0)
    for run in samples[len(samples) // 2].runs:
        sizes = sizes_at(run.dims, run.past)
        for step in run.steps:
            calls[step.node.name] += 1
        for node in {step.node: None for step in run.steps}:
            parts[node.name].append(work(node, sizes))
    outside = dict.fromkeys([*(span.phase for sample in samples for span in sample.outside), OTHER])
    return [
        *(ProfileEntry(phase, "", NodePlace(None, phase)) for phase in outside),
        *(
            ProfileEntry(name, node.op.name, place_of(node, known), calls[name], total(parts[name]))
            for name, node in nodes.items()
        ),
    ]


def with_times(model: Model, measured: Profile) -> Document:
    """The document of the graph that was profiled last, the tokens' or else the prompt's, with its times."""
    stage = measured.stages[-1]
    document = describe_model(model.executor, 1 if stage.tokens == 1 else model.executor.n_batch)
    return {**document, "overlays": overlays(stage)}
