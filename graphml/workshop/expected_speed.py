"""How fast a model will be: here, by steps over random weights of its shapes; at most, by a GPU's figures.

A header is enough. Speed does not depend on what the weights are, so the steps are the model's own, by
the same graph, passes and kernels. Knows headers, models and clocks; nothing of commands.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from graphml.api.model import Model
from graphml.api.text_rows import longest_text
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.ir.work import step_work
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.weights.model_file import ModelFile
from graphml.weights.random_tensors import in_shared_memory

PROMPT = 512
"""Tokens of the prompt, where the model's context and the steps have room for them."""
FIRST, ENOUGH_S, PROMPT_S = 16, 0.5, 5.0
FEWEST, MOST, PROMPTS = 4, 32, 3
"""Steps of one token at least and at most, and prompts; medians of them count."""


@dataclass(frozen=True)
class Speed:
    """Tokens a second: of a prompt of n_prompt tokens, and of what is generated behind it, one at a time.

    Of a model whose texts become rows, a text is the prompt, and generation is None.
    """

    n_prompt: int
    prompt: float
    generation: float | None


def expected_speed(
    file: ModelFile, options: LoadOptions, types: Mapping[str, str] = {}, progress: Progress = no_progress
) -> Speed:
    """The speed of a model of which the header is open, by steps that are run now.

    types: of tensors that are to have another one. A prompt that would take longer than a few seconds is
    made shorter. UsageError for models of other kinds: with an encoder for a source text, or of diffusion.
    """
    with closing(open_executor(in_shared_memory(file, types), options, progress)) as executor:
        if executor.encodes or executor.denoises:
            kind = "a source text" if executor.encodes else "several passes over a block"
            raise UsageError(
                f"{file.path}: {executor.architecture.name}: how fast it answers depends on {kind}: wanted "
                "a model that generates token by token, or one that embeds texts"
            )
        return measured_speed(Model(executor, file.path))


def measured_speed(model: Model) -> Speed:
    """The same of a model that is open, by its own weights."""
    if not model.executor.generates:
        return _of_texts(model)
    most = min(PROMPT, model.executor.n_batch, model.n_ctx - MOST - 1)
    ids = np.random.default_rng(0).integers(0, model.n_vocab, most)
    first = min(FIRST, most)
    with model.session(most + MOST + 1, prefix_cache=False) as session:

        def seconds(count: int, n_past: int = 0) -> float:
            session.rewind(n_past)
            start = time.perf_counter()
            session.eval(ids[:count])
            return time.perf_counter() - start

        seconds(first)  # compiles, and touches the weights
        n_prompt = _length(first, seconds(first), most)
        prompts = [seconds(n_prompt) for _ in range(1 + PROMPTS)][1:]
        seconds(1, n_prompt)
        steps: list[float] = []
        while len(steps) < FEWEST or (len(steps) < MOST and sum(steps) < ENOUGH_S):
            start = time.perf_counter()
            session.eval(ids[:1])
            steps.append(time.perf_counter() - start)
    return Speed(n_prompt, n_prompt / statistics.median(prompts), 1 / statistics.median(steps))


def _of_texts(model: Model) -> Speed:
    most = min(PROMPT, longest_text(model.executor))
    ids = np.random.default_rng(0).integers(0, model.n_vocab, most).tolist()
    first = min(FIRST, most)

    def seconds(count: int) -> float:
        start = time.perf_counter()
        model.embed_ids([ids[:count]], "none")
        return time.perf_counter() - start

    seconds(first)
    count = _length(first, seconds(first), most)
    texts = [seconds(count) for _ in range(1 + PROMPTS)][1:]
    return Speed(count, count / statistics.median(texts), None)


def _length(first: int, seconds: float, most: int) -> int:
    """Tokens of a prompt that takes not much longer than it may, when the first tokens take so long."""
    return max(first, min(most, int(first / seconds * PROMPT_S)))


def most_by_figures(
    executor: Executor, n_prompt: int, bandwidth: float, flops: float
) -> tuple[float | None, float | None]:
    """Tokens a second at most, of a prompt and of generation behind it, on a device of such figures.

    bandwidth: bytes a second of its memory. flops: operations a second of its matrix products; 0: not known,
    and the first result is None then. The second one is None for a model that does not generate.
    """
    prompt, step = (step_work(executor.build(n, 1), n, past) for n, past in ((n_prompt, 0), (1, n_prompt)))
    most = n_prompt / max(prompt.n_bytes / bandwidth, prompt.flops / flops) if flops else None
    return most, bandwidth / step.n_bytes if executor.generates else None
