"""Denoising: an answer of masked tokens is filled in, in a number of steps and in any order.

Masked diffusion as of LLaDA (arXiv:2502.09992: blocks) and Dream (arXiv:2508.15487: timesteps), with the
choices of llama.cpp's example `diffusion`. Knows ids, logits and schedules; nothing of models or texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError, WeightsError
from graphml.loading.diffusion import Diffusion
from graphml.sampling.candidates.candidates import Candidates, Floats, Ids, sum_in_order
from graphml.sampling.candidates.mersenne_twister import MersenneTwister
from graphml.sampling.candidates.random_numbers import PeekableRandom
from graphml.sampling.chain.next_logits import no_numbers
from graphml.sampling.chain.sampler import as_llama_cpp, by_number, flaw_of, sampler_of
from graphml.sampling.settings.params import DIFFUSION, LLAMA_CPP, STRUCTURES, SamplingParams

EPS = 1e-3
"""Where timesteps end by default, as Dream's do."""
_TINY = np.float32(1e-10)
_ORDER, _CHOICE = "diffusion", "diffusion-choice"  # generators that llama.cpp's example has besides
_IN_ORDER = (
    *STRUCTURES, "grammar_lazy", "grammar_after", "reasoning_budget", "banned_strings", "function",
    "dry_multiplier", "mirostat", "adaptive_target", "logprobs", "prompt_logprobs",
)  # fmt: skip
"""Settings that want each token to follow the ones before it."""


def check_denoised(params: SamplingParams) -> None:
    """UsageError for settings that mean nothing where tokens are filled in in any order."""
    usual = SamplingParams()
    wrong = [name for name in _IN_ORDER if getattr(params, name) != getattr(usual, name)]
    if params.penalised:
        wrong += [
            name for name in ("repeat_penalty", "presence_penalty", "frequency_penalty")
            if getattr(params, name) != getattr(usual, name)
        ]  # fmt: skip
    if params.spec_type not in ("auto", "none"):
        wrong.append("spec_type")
    if wrong:
        raise UsageError(
            f"{wrong[0]}: a diffusion model fills in the tokens of an answer in any order: wanted none of "
            "what follows a text token by token (structures, tools, penalties, log-probabilities, drafts)"
        )


def check_continued(params: SamplingParams) -> None:
    """UsageError for settings of diffusion models alone."""
    usual = SamplingParams()
    for name in DIFFUSION:
        if getattr(params, name) != getattr(usual, name):
            raise UsageError(f"{name}: wanted a diffusion model; this one continues texts token by token")


@dataclass(frozen=True)
class Block:
    """The positions from `first` on, before `end`, that are denoised in so many steps.

    eps: of timesteps, by which a step fills in a share of what is open; 0: as many in each step.
    """

    first: int
    end: int
    steps: int
    eps: float = 0.0


def blocks_of(first: int, end: int, params: SamplingParams, model: Diffusion) -> list[Block]:
    """The blocks of an answer in their order; UsageError where there are fewer steps than blocks."""
    length = params.diffusion_block_length or (0 if params.diffusion_eps else model.block)
    if not length:
        return [Block(first, end, params.diffusion_steps, params.diffusion_eps or EPS)]
    begins = range(first, end, length)
    steps, more = divmod(params.diffusion_steps, max(1, len(begins)))
    if begins and not steps:
        raise UsageError(
            f"diffusion_steps: wanted at least {len(begins)}, one for each block of {length} of an answer of "
            f"{end - first} tokens; got {params.diffusion_steps}"
        )
    return [Block(at, min(at + length, end), steps + (i < more)) for i, at in enumerate(begins)]


def n_filled(block: Block, step: int, n_open: int, n_first: int) -> int:
    """How many of `n_open` open positions a step fills in; n_first: of those that were open at first.

    The last step fills in all. Timesteps as llama.cpp adds them, in float32.
    """
    if step == block.steps - 1:
        return n_open
    if not block.eps:
        return min(n_open, n_first // block.steps + (step < n_first % block.steps))
    whole, steps, eps = np.float32(1), np.float32(block.steps), np.float32(block.eps)
    t, s = (whole - np.float32(i) / steps * (whole - eps) for i in (step, step + 1))
    return int(np.float32(n_open) * (whole - s / t))


class Denoiser:
    """One answer: `text` is evaluated, `take` gets its logits, until it is `done`.

    prompt: at least one id; length: of the answer; numbers: the sequence's own. ids: of both, int32, as far
    as they are known, else the mask. A position that was filled in is never changed. n_steps: those that were
    taken so far, of at most `most_steps`.
    """

    def __init__(
        self,
        prompt: Sequence[int] | Ids,
        length: int,
        model: Diffusion,
        params: SamplingParams,
        numbers: PeekableRandom,
    ) -> None:
        check_denoised(params)
        self._model, self._params, self._n_prompt, self.mask = model, params, len(prompt), model.mask
        self.ids: Ids = np.append(np.asarray(prompt, np.int32), np.full(length, self.mask, np.int32))
        self._exact = params.rng == LLAMA_CPP
        if params.greedy:  # typical-p and XTC may remove the likeliest
            params = replace(params, temperature=1.0, dynatemp_range=0.0, typical_p=1.0, xtc_probability=0.0)
        self._sampler = sampler_of(params)
        self._numbers = numbers
        self._blocks = blocks_of(self._n_prompt, len(self.ids), params, model)
        self.most_steps = sum(block.steps for block in self._blocks)
        self.n_steps = self._step = self._n_first = 0
        self._with_prompt: Floats | None = None
        self._begin_block()
        self._pass_idle_steps()

    @property
    def prompt(self) -> Ids:
        """The ids of the prompt."""
        return self.ids[: self._n_prompt]

    @property
    def done(self) -> bool:
        """Whether the answer has no open position."""
        return not self._blocks

    @property
    def answer(self) -> Ids:
        """The ids of the answer, `mask` where one is open."""
        return self.ids[self._n_prompt :]

    @property
    def n_settled(self) -> int:
        """How many ids of the answer are known before the first that is open."""
        still_open = np.flatnonzero(self.answer == self.mask)
        return int(still_open[0]) if len(still_open) and not self.done else len(self.answer)

    @property
    def text(self) -> Ids:
        """The ids whose logits are wanted next, int32 [n]: with guidance in turn the prompt's as masks."""
        if self._with_prompt is None:
            return self.ids
        hidden = self.ids.copy()
        hidden[: self._n_prompt] = self.mask
        return hidden

    @property
    def rows(self) -> Ids:
        """The rows of these logits that `take` is given, int32 [n], in order."""
        return np.asarray(self._open() - self._model.shifts, np.int32)

    def take(self, logits: Floats) -> None:
        """Fill in tokens by the logits of `text`, float32 [rows, n_vocab].

        UsageError for logits that are no numbers.
        """
        scale = np.float32(self._params.diffusion_cfg_scale)
        if scale and self._with_prompt is None:
            self._with_prompt = logits.copy()
            return
        if self._with_prompt is not None:
            logits, self._with_prompt = logits + (scale + 1) * (self._with_prompt - logits), None
        block, still_open = self._blocks[0], self._open()
        count = n_filled(block, self._step, len(still_open), self._n_first)
        if self._params.diffusion_algorithm == "origin":
            share = np.float32(count) / np.float32(len(still_open))
            chosen = [i for i in range(len(still_open)) if self._number() < share]
            tokens = {i: self._sampled(logits[i])[0] for i in chosen}
        else:
            sampled = [self._sampled(row) for row in logits]
            confidences = np.array([self._confidence(left, at) for _, left, at in sampled], np.float32)
            chosen = self._chosen(confidences, count)
            tokens = {i: sampled[i][0] for i in chosen}
        for i, token in tokens.items():
            if token == self.mask and self._step == block.steps - 1:  # an answer has no open position
                row = logits[i].copy()
                row[token] = -np.inf
                token, *_ = self._sampled(row)
            self.ids[still_open[i]] = token
        self.n_steps, self._step = self.n_steps + 1, self._step + 1
        self._pass_idle_steps()

    def _open(self) -> NDArray[np.intp]:
        """The positions of the block that are open."""
        if self.done:
            return np.empty(0, np.intp)
        block = self._blocks[0]
        return block.first + np.flatnonzero(self.ids[block.first : block.end] == self.mask)

    def _begin_block(self) -> None:
        self._step, self._n_first = 0, len(self._open())

    def _pass_idle_steps(self) -> None:
        """Go on to a step that changes something: by llama.cpp's numbers to one that uses any, too."""
        params = self._params
        draws = not params.greedy or params.diffusion_algorithm in ("origin", "random")
        while self._blocks:
            block, n_open = self._blocks[0], len(self._open())
            if not n_open or self._step == block.steps:
                del self._blocks[0]
                self._begin_block()
            elif (self._exact and draws) or n_filled(block, self._step, n_open, self._n_first):
                return
            else:
                self._step += 1

    def _number(self) -> float:
        return self._generator(_ORDER).single() if self._exact else self._numbers.random()

    def _generator(self, name: str) -> MersenneTwister:
        return self._numbers.kept.generator(name, self._numbers.seed)

    def _sampled(self, row: Floats) -> tuple[int, Candidates, int]:
        """A token, the candidates that it comes from, and its place among them."""
        if self._params.greedy:
            left = self._sampler.left(row, self._numbers)
            at = int(np.argmax(left.logits))
            return int(left.ids[at]), left, at
        token, left = self._sampler.sample_and_left(row, (), self._numbers)
        return token, left, int(np.flatnonzero(left.ids == token)[0])

    def _confidence(self, left: Candidates, at: int) -> float:
        """By which the largest are filled in first; with llama.cpp's numbers as its example computes them.

        There the entropy counts the other way round, and the margin is that of the first two candidates in
        whatever order they are.
        """
        how = self._params.diffusion_algorithm
        if how == "random":
            return self._number()
        weights = np.exp(left.logits - left.logits.max())
        total = weights.sum(dtype=np.float64)
        if how == "confidence":
            return float(weights[at] / total)
        probabilities = (weights / total).astype(np.float32)
        if how == "margin":
            first = probabilities[:2] if self._exact else np.sort(probabilities)[::-1][:2]
            return float(first[0] - first[1] if len(first) > 1 else first[0])
        negative = sum_in_order(probabilities * np.log(probabilities + _TINY))
        return float(-negative if self._exact else negative)

    def _chosen(self, confidences: Floats, count: int) -> list[int]:
        """The places of the `count` largest, equals in their order; at a temperature sampled one by one."""
        temperature = np.float32(self._params.diffusion_alg_temp)
        if not temperature or (count == len(confidences) and not self._exact):
            return [int(i) for i in np.argsort(-confidences, kind="stable")[:count]]
        chosen, left = list[int](), np.arange(len(confidences), dtype=np.int32)
        for _ in range(count):
            candidates = Candidates(left, np.take(confidences, left) / temperature)
            if self._exact:
                at = as_llama_cpp(candidates, self._generator(_CHOICE), discrete=False)
            else:
                at = by_number(candidates.logits, self._numbers.random())
            chosen.append(int(left[at]))
            left = np.delete(left, at)
        return chosen


def denoised(denoiser: Denoiser, logits: Floats, path: Path) -> None:
    """Have an answer take its logits; WeightsError where they are no numbers. path: of the model."""
    try:
        denoiser.take(logits)
    except UsageError:
        flaw = next((flaw for row in logits if (flaw := flaw_of(row)) is not None), None)
        if flaw is None:
            raise
        raise WeightsError(no_numbers(path, flaw)) from None
