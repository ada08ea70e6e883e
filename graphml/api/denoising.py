"""Answers of diffusion models: what is refused, how long one is, and a session that denoises one.

Knows params, sessions and denoisers; nothing of engines' steps, or of how a denoiser chooses.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphml.api.session_evaluation import EvaluatedSession
from graphml.api.tokens import GeneratedText, StopReason, Token
from graphml.compiler.options import CompileOptions
from graphml.errors import ContextFullError, UsageError
from graphml.ir.op import Array
from graphml.runtime.plans.plan_texts import denoised
from graphml.runtime.programs.executor import Executor
from graphml.sampling import PeekableRandom, SamplingParams
from graphml.sampling.denoiser import Denoiser, check_continued, check_denoised

DEFAULT_LENGTH = 256
"""Tokens of an answer that nobody limits: all of it is there from the first step on."""


def check_kind(executor: Executor, params: SamplingParams, options: CompileOptions) -> None:
    """UsageError for settings that this kind of model, diffusion or not, cannot follow.

    options: of the programs, whose adapters a diffusion model has for all of a text.
    """
    check = check_denoised if executor.denoises else check_continued
    check(params)
    activated = [adapter.name for adapter in options.adapters if adapter.invocation]
    if executor.denoises and activated:
        raise UsageError(
            f"lora: a diffusion model has its adapters for all of a text: wanted none that works from its "
            f"invocation on; {activated[0]} does"
        )


def answer_length(executor: Executor, n_prompt: int, max_tokens: int | None, n_ctx: int) -> int:
    """How many tokens an answer is denoised as; None: `DEFAULT_LENGTH`, or what the context has room for.

    ContextFullError where it has none; UsageError for a text of more tokens than one step computes.
    """
    if n_prompt >= n_ctx:
        raise ContextFullError(
            f"wanted a prompt of at most {n_ctx - 1} tokens, which leave room for an answer in the context "
            f"of {n_ctx}; got {n_prompt}"
        )
    room = executor.n_batch - n_prompt
    length = min(room, DEFAULT_LENGTH) if max_tokens is None else max_tokens
    length = min(length, n_ctx - n_prompt)
    if room < max(1, length):
        raise UsageError(
            f"max_tokens: a diffusion model computes prompt and answer in one step: wanted at most n_batch = "
            f"{executor.n_batch} tokens; got {n_prompt} and {length}: open it with a larger n_batch (--batch)"
        )
    return length


def denoiser_of(
    executor: Executor, ids: Array, params: SamplingParams, length: int, numbers: PeekableRandom
) -> Denoiser:
    """What denoises an answer of this length to a prompt, which has at least one id."""
    model = executor.diffusion
    assert model is not None
    return Denoiser(ids, length, model, params, numbers)


def denoised_answer(
    session: EvaluatedSession, ids: Array, params: SamplingParams, length: int, why_last: StopReason
) -> Iterator[Token]:
    """The tokens of an answer to all ids, as they are settled; the session holds those in the end.

    length: of the answer; why_last: why it ends behind all of them.

    While it runs the session holds the text as it was evaluated last, with masks.
    """
    executor, held, meter, turn = session._executor, session._held, session.meter, session._turn
    text = GeneratedText(session._tokenizer, params)
    answer = denoiser_of(executor, ids, params, length, session.numbers)
    session.prompt_ids, meter.n_prompt, meter.at_once = ids.tolist(), len(ids), True
    held.rewind(0)
    session._compile(len(answer.ids), all_logits=True)
    try:
        while session.stop_reason is None:
            if session._turn != turn:
                raise UsageError("generate: the session was used for something else meanwhile; begin anew")
            if session._cancelled:
                session.stop_reason = "cancel"
            elif answer.n_settled > len(session.generated):
                yield from _settled(session, answer, text, why_last)
            elif answer.done:
                session.stop_reason = why_last  # of no tokens
            else:
                with meter.token():
                    held.rewind(0)
                    logits = session.evaluated(answer.text, all_logits=True)
                    denoised(answer, logits[answer.rows], executor.file.path)
                if session.on_denoised is not None:
                    session.on_denoised(answer)
    finally:
        if session._turn == turn:
            held.hold([*session.prompt_ids, *session.generated])


def _settled(
    session: EvaluatedSession, answer: Denoiser, text: GeneratedText, why_last: StopReason
) -> Iterator[Token]:
    """Give the tokens that are settled and were not given, until one of them ends the answer."""
    for token in answer.answer[len(session.generated) : answer.n_settled].tolist():
        session.stop_reason = text.ended_by(token)
        if session.stop_reason is not None:
            if piece := text.flush():
                yield Token(token, piece)
            return
        session.generated.append(token)
        session.meter.n_gen += 1
        piece, stopped = text.push(token)
        if stopped:
            session.stop_reason = "stop"
        elif len(session.generated) == len(answer.answer):
            session.stop_reason = why_last
            piece += text.flush()
        yield Token(token, piece)
        if session.stop_reason is not None:
            return
