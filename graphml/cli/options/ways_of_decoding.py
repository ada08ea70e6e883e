"""Other ways than one sampled text: options of `graphml run` for beams, guidance, best of several, healing.

Knows which options exclude each other, and which method of `Model` each way is; nothing of terminals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import graphml
from graphml.api.chat_prompt import ChatPrompt, chat_prompt
from graphml.api.request_handle import SCORES, ranked
from graphml.api.stats import Stats
from graphml.api.tokens import GeneratedText
from graphml.errors import UsageError
from graphml.options.option_fields import OneOf, Real, Whole, check, option
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.sessions.committed import check_room
from graphml.sampling import SamplingParams
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.text.answers import Event


@dataclass(frozen=True)
class DecodingOptions:
    """How the text is found; with the defaults it is sampled, token by token.

    beams: 0: no beam search. best_of: 1: no others to choose from.
    """

    beams: int = option(
        0,
        "Number of beams of beam search; 0: none.",
        "--beams",
        range=Whole(0),
    )
    length_penalty: float = option(
        1.0, "Exponent P of a beam's score, log-probability / length ** P; 0: the sum.", "--length-penalty",
        range=Real(-100, 100),
    )  # fmt: skip
    early_stopping: str = option(
        "better",
        "Beam search ends when as many texts as beams have ended, and none that goes on: is better (better), "
        "can become better (never); or at once (always).",
        "--early-stopping",
        range=OneOf(("better", "always", "never")),
    )
    best_of: int = option(
        1, "Best of N: sample N answers, print the most likely.", "--best-of", range=Whole(1, 128)
    )
    best_by: str = option(
        "mean", "Score of --best-of by the tokens' log-probabilities: {words}.", "--best-by",
        range=OneOf(SCORES),
    )  # fmt: skip
    guidance_scale: float = option(
        1.0,
        "Scale of classifier-free guidance; 1: none.",
        "--guidance-scale",
        range=Real(0, 100),
    )
    negative_prompt: str | None = option(
        None, "Negative prompt of the guidance; by default the prompt's last token.", "--negative-prompt",
    )  # fmt: skip
    heal: bool = option(
        False,
        "Token healing: generate the prompt's last token anew, with its text as a prefix.",
        "--heal",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.beams and (self.best_of > 1 or self.guidance_scale != 1.0 or self.heal):
            raise UsageError("--beams: wanted no --best-of, --guidance-scale or --heal besides")
        if self.heal and (self.best_of > 1 or self.guidance_scale != 1.0):
            raise UsageError("--heal: wanted no --best-of or --guidance-scale besides")
        if self.negative_prompt is not None and self.guidance_scale == 1.0:
            raise UsageError("--negative-prompt: wanted a --guidance-scale other than 1 besides; got 1")
        if not self.beams and (self.length_penalty, self.early_stopping) != (1.0, "better"):
            raise UsageError("--length-penalty, --early-stopping: wanted --beams besides")
        if self.best_of == 1 and self.best_by != "mean":
            raise UsageError("--best-by: wanted a --best-of above 1 besides")

    @property
    def whole(self) -> bool:
        """Whether an answer is found as a whole, in other ways than by a session."""
        return bool(self.beams) or self.best_of > 1 or self.guidance_scale != 1.0

    def check_params(self, params: SamplingParams, full: Overflow, captures: bool, fills: bool) -> None:
        """UsageError for other options that have no part in this way."""
        if self.whole and (captures or fills):
            which = "--capture" if captures else "--suffix"
            raise UsageError(f"{which}: wanted no --beams, --best-of or --guidance-scale besides")
        if self.heal and fills:
            raise UsageError("--suffix: wanted no --heal besides")
        if self.beams:
            if replace(params, stop_tokens=frozenset()) != SamplingParams():
                raise UsageError(
                    "--beams: finds the most likely text; wanted no options of sampling but --stop-token"
                )
            if full != Overflow():
                raise UsageError("--beams: wanted a text that fits in the context, no --overflow or --keep")


@dataclass
class Found:
    """An answer that was found as a whole, with what `Session` has of one.

    scores: what beams, or answers to choose from, were compared by, the chosen one's first. logprobs: of the
    tokens that were shown so far.
    """

    text: str
    generated: list[int]
    stop_reason: str
    prompt_ids: list[int]
    seed: int | None
    n_ctx: int
    stats: Stats
    scores: list[float] = field(default_factory=list)
    every: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    source: list[int] = field(default_factory=list)

    def _shown(self) -> Iterator[int]:
        for index, token in enumerate(self.generated):
            self.logprobs += self.every[index : index + 1]
            yield token

    def pieces(self, model: graphml.Model, params: SamplingParams) -> Iterator[str]:
        """Its text, token by token."""
        text = GeneratedText(model.tokenizer, params)
        for token in self._shown():
            yield text.push(token)[0]
        yield text.flush()

    def events(self, prompt: ChatPrompt) -> Iterator[Event]:
        """Its text and reasoning, token by token."""
        reader = prompt.reader()
        for token in self._shown():
            yield from reader.push(graphml.Token(token, ""))
        yield from reader.finish()


@dataclass(frozen=True)
class Asked:
    """What is continued and how: ids, limits, seed; negative: those of the negative prompt."""

    ids: list[int]
    params: SamplingParams
    limit: int | None
    n_ctx: int | None
    seed: int | None
    full: Overflow
    negative: list[int] | None = None


def found_whole(model: graphml.Model, how: DecodingOptions, asked: Asked) -> Found:
    """The answer of a way that is `whole`."""
    return _by_beams(model, how, asked) if how.beams else _of_engine(model, how, asked)


def chat_prompt_of(model: graphml.Model, system: str, text: str, **settings: Any) -> ChatPrompt:
    """The prompt of a message of the user, by the model's template; settings as of `chat_prompt`."""
    said = [{"role": "system", "content": system}] if system else []
    assert model.tokenizer is not None
    messages = [*said, {"role": "user", "content": text}]
    return chat_prompt(model.tokenizer, model.templates, messages, **settings)


def _by_beams(model: graphml.Model, how: DecodingOptions, asked: Asked) -> Found:
    n_ctx = min(asked.n_ctx or model.n_ctx, model.n_ctx)
    room = n_ctx - len(asked.ids)
    check_room(n_ctx, 0, len(asked.ids) + 1)
    limit = room if asked.limit is None else min(asked.limit, room)
    if limit == 0:
        return Found("", [], "length", asked.ids, None, n_ctx, Stats(n_prompt=len(asked.ids)))
    early = how.early_stopping if how.early_stopping == "never" else how.early_stopping == "always"
    start = time.perf_counter()
    beams = model.beam_search(
        asked.ids, how.beams, limit, n_best=how.beams, length_penalty=how.length_penalty,
        early_stopping=early, stop_tokens=asked.params.stop_tokens,
    )  # fmt: skip
    best, seconds = beams[0], time.perf_counter() - start
    rate = len(best.tokens) / seconds
    stats = Stats(n_prompt=len(asked.ids), n_gen=len(best.tokens), ttft_s=seconds, gen_tps=rate)
    scores = [beam.score for beam in beams]
    return Found(best.text, best.tokens, best.stop_reason, asked.ids, None, n_ctx, stats, scores)


def _of_engine(model: graphml.Model, how: DecodingOptions, asked: Asked) -> Found:
    params, count = asked.params, how.best_of
    if count > 1 and params.logprobs is None:
        params = replace(params, logprobs=0)
    options: dict[str, Any] = {"guidance_scale": how.guidance_scale, "negative_prompt": asked.negative}
    options |= {"overflow": asked.full.overflow, "keep": asked.full.keep}
    with model.engine(n_ctx=asked.n_ctx) as engine:
        handle = engine.submit(asked.ids, params, asked.limit, asked.seed, count, **options)
        results = ranked(handle.results(), how.best_by) if count > 1 else handle.results()
        seed, n_ctx = handle.sequences[handle.results().index(results[0])].seed, engine.n_ctx
    best, timings = results[0], results[0].timings
    stats = Stats(
        best.n_prompt, best.n_cached, best.n_gen, timings.ttft_s, timings.prompt_tps, timings.gen_tps,
        best.n_drafted, best.n_accepted,
    )  # fmt: skip
    scores = [
        result.mean_logprob if how.best_by == "mean" else result.cumulative_logprob for result in results
    ]
    return Found(
        best.text, best.tokens, best.stop_reason, asked.ids, seed, n_ctx, stats,
        [score for score in scores if score is not None] if count > 1 else [],
        (best.logprobs or []) if asked.params.logprobs is not None else [], best.prompt_logprobs or [],
    )  # fmt: skip
