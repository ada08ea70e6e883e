"""Answers of diffusion models: what is refused, how long and how shown one is; a session that denoises one.

Knows params, sessions, denoisers and tokenizers; nothing of engines' steps, or of how a denoiser chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator

from graphml.api.session_evaluation import EvaluatedSession, used_meanwhile
from graphml.api.tokens import GeneratedText, StopReason, Token
from graphml.compiler.options import CompileOptions
from graphml.errors import ContextFullError, UsageError
from graphml.ir.op import Array
from graphml.runtime.programs.executor import Executor
from graphml.sampling import PeekableRandom, SamplingParams
from graphml.sampling.denoiser import Denoiser, check_continued, check_denoised, denoised
from graphml.text.tokenizer import Tokenizer

OPEN = "░"
"""What stands for a token that is not known yet, where an answer is shown."""
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


def shown_answer(tokenizer: Tokenizer, answer: Denoiser) -> str:
    """The text of an answer as far as it is known, with `OPEN` for each open token."""
    text = ""
    for is_open, run in itertools.groupby(answer.answer.tolist(), lambda id: id == answer.mask):
        ids = list(run)
        text += OPEN * len(ids) if is_open else tokenizer.decode(ids)
    return text


def answer_length(n_prompt: int, max_tokens: int, n_ctx: int) -> int:
    """How many tokens an answer is denoised as; ContextFullError where the context has room for none."""
    if n_prompt >= n_ctx:
        raise ContextFullError(
            f"wanted a prompt of at most {n_ctx - 1} tokens, which leave room for an answer in the context "
            f"of {n_ctx}; got {n_prompt}"
        )
    return min(max_tokens, n_ctx - n_prompt)


def denoiser_of(
    executor: Executor, ids: Array, params: SamplingParams, length: int, numbers: PeekableRandom
) -> Denoiser:
    """What denoises an answer of this length to a prompt, which has at least one id."""
    model = executor.diffusion
    assert model is not None
    return Denoiser(ids, length, model, params, numbers)


def denoised_answer(
    session: EvaluatedSession, answer: Denoiser, why_last: StopReason, text: GeneratedText, turn: int
) -> Generator[Token, None, None]:
    """The tokens of an answer as they are settled; the session holds prompt and tokens in the end.

    why_last: why it ends behind all of them; turn: the session's use, which it belongs to.

    While it runs the session holds the text as it was evaluated last, with masks.
    """
    executor, held, meter = session._executor, session._held, session.meter
    if session._turn == turn:
        session.prompt_ids, meter.n_prompt, meter.at_once = answer.prompt.tolist(), len(answer.prompt), True
        held.rewind(0)
        session._compile(len(answer.ids), all_logits=True)
    try:
        while True:
            if session._turn != turn:
                raise used_meanwhile()
            if session.stop_reason is not None:
                return
            if session._cancelled:
                session.stop_reason = "cancel"
            elif answer.n_settled > len(session.generated):
                token = _settled(session, answer, text, why_last)
                if token is not None:
                    yield token
            elif answer.done:
                session.stop_reason = why_last  # of no tokens
            else:
                n_steps = answer.n_steps
                with meter.token():
                    held.rewind(0)
                    logits = session.evaluated(answer.text, all_logits=True)
                    denoised(answer, logits[answer.rows], executor.file.path)
                if session.on_denoised is not None and answer.n_steps > n_steps:  # two texts with guidance
                    session.on_denoised(answer)
    finally:
        if session._turn == turn:
            held.hold([*session.prompt_ids, *session.generated])


def _settled(
    session: EvaluatedSession, answer: Denoiser, text: GeneratedText, why_last: StopReason
) -> Token | None:
    """The next token that is settled; None for one that ends the answer and has no text."""
    id = int(answer.answer[len(session.generated)])
    session.stop_reason = text.ended_by(id)
    if session.stop_reason is not None:
        piece = text.flush()
        return Token(id, piece) if piece else None
    session.generated.append(id)
    session.meter.n_gen += 1
    piece, stopped = text.push(id)
    if stopped:
        session.stop_reason = "stop"
    elif len(session.generated) == len(answer.answer):
        session.stop_reason = why_last
        piece += text.flush()
    return Token(id, piece)
