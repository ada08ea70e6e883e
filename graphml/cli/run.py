"""`graphml run`: answer one prompt, or continue a text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

import graphml
from graphml.api.chat_prompt import ChatSettings
from graphml.cli.options import options
from graphml.cli.options.answer_options import (
    CaptureOptions,
    Gap,
    InfillOptions,
    check_template,
    template_variables,
    with_files,
    with_template,
)
from graphml.cli.options.opening import find, load, seed_of
from graphml.cli.options.prompts import PromptOptions, Words, model_and_prompt
from graphml.cli.options.typer_options import grouped, sources_by_field
from graphml.cli.options.ways_of_decoding import Asked, DecodingOptions, Found, chat_prompt_of, found_whole
from graphml.cli.terminal.console import Bars, remark, say, write, write_json
from graphml.cli.terminal.denoising_view import Visual, with_view
from graphml.cli.terminal.shown_answer import (
    Seconds,
    TokenColours,
    as_json,
    in_colours,
    speed,
    table_of,
    text_of,
    timings,
)
from graphml.errors import UsageError
from graphml.runtime.blocks.overflow import Overflow
from graphml.sampling import SamplingParams
from graphml.sampling.settings.sampling_defaults import ChosenSampling, chosen_sampling
from graphml.text.template_process import PROCESSES

Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the text as it is, without the model's chat template.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print timings on stderr, as ollama does.")]
ShowPrompt = Annotated[
    bool, typer.Option("--show-prompt", help="Print the rendered prompt before the answer.")
]


@grouped
def run(
    context: typer.Context,
    prompts: PromptOptions,
    infill: InfillOptions,
    captures: CaptureOptions,
    opening: options.Talking,
    params: SamplingParams,
    full: Overflow,
    decoding: DecodingOptions,
    words: Words = None,
    max_tokens: options.MaxTokens = -1,
    raw: Raw = False,
    system: options.System = "",
    show_prompt: ShowPrompt = False,
    json: options.Json = False,
    verbose: Verbose = False,
    ctx: options.Context = None,
    seed: options.Seed = -1,
    variables: options.Variables = None,
    chat_template: options.Template = None,
    reasoning_format: options.ReasoningFormat = "auto",
    grammar_file: options.GrammarFile = None,
    schema_file: options.SchemaFile = None,
    diffusion_visual: Visual = False,
) -> None:
    """Answer a prompt with the model's chat template; models without one, and --raw, continue the text."""
    begin = time.monotonic()
    given_variables = template_variables(variables)
    opening = with_template(opening, chat_template)
    ChatSettings(reasoning_format=reasoning_format)  # a wrong one is told at once
    params = with_files(params, grammar_file, schema_file)
    if raw and opening.template is not None:
        raise UsageError("--raw, --template: wanted one of them; got both")
    captures.check()
    decoding.check_params(params, full, bool(captures.patterns), infill.suffix is not None)
    model, text = model_and_prompt(words or (), prompts, opening)
    limit = None if max_tokens < 0 else max_tokens
    asked = given_variables, reasoning_format
    if not (raw or infill.suffix is not None):
        PROCESSES.prepare()  # while the model is opened
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        loaded = time.monotonic()
        check_template(opened, chat_template)
        sampling = ChosenSampling(params)
        if not decoding.beams:
            asked_flags = sources_by_field(context, SamplingParams)
            sampling = chosen_sampling(params, asked_flags, opened.sampling_defaults)
        how = AnswerSettings(
            system, raw, sampling.params, full, limit, ctx, seed, *asked, captures.patterns, decoding,
            infill.gap(), json,
        )  # fmt: skip
        session, full_prompt, pieces = _begin(opened, text, how, bars)
        if show_prompt and not json:
            write(full_prompt)
        pieces = with_view(pieces, session, opened, diffusion_visual)
        answer = _shown(pieces, bars, None if json else TokenColours(session))
        if isinstance(session, graphml.Session):
            captures.write(session)
        if json:
            write_json(_as_json(opened, opening.backend, session, sampling, full_prompt, answer))
        elif not session.generated and limit != 0:
            say("graphml: the answer is empty: the first token that the model chose ends it")
        elif session.stop_reason == "context":
            say(f"graphml: the context of {session.n_ctx} tokens is full")
        elif session.stop_reason == "length":
            tell = say if sampling.params.structured else remark  # who parses the answer must know
            count = len(session.generated) if limit is None else limit
            tell(f"graphml: cut at {count} tokens (-n)")
        if not json and not in_colours():
            _write_tables(session)
        if verbose:
            say(timings(session.stats, Seconds(begin, loaded, opened.executor.programs.seconds)))
        else:
            remark(speed(session.stats))


def _as_json(
    model: graphml.Model,
    backend: str,
    session: graphml.Session | Found,
    sampling: ChosenSampling,
    prompt: str,
    answer: str,
) -> dict[str, Any]:
    """The answer and its figures. prompt: the text that the model was given."""
    scores = {"scores": session.scores} if isinstance(session, Found) and session.scores else {}
    return {
        "model": str(model.path),
        "arch": model.arch,
        "backend": backend,
        "prompt": prompt,
        "text": answer,
        "prompt_ids": session.source or session.prompt_ids,
        "ids": session.generated,
        "stop_reason": session.stop_reason,
        "seed": session.seed,
        "sampling": sampling.as_json(),
        "stats": dict(session.stats),
        **_scores(session, sampling.params),
        **scores,
    }


def _scores(session: graphml.Session | Found, params: SamplingParams) -> dict[str, Any]:
    """The log-probabilities that were asked for, as JSON has them."""
    scores: dict[str, Any] = {}
    if params.logprobs is not None:
        scores["logprobs"] = [as_json(token) for token in session.logprobs]
    if params.prompt_logprobs is not None:
        scores["prompt_logprobs"] = [as_json(token) for token in session.prompt_logprobs]
    return scores


def _write_tables(session: graphml.Session | Found) -> None:
    """Tables of the log-probabilities that were asked for, where no colours are shown."""
    for name, scores in (("prompt", session.prompt_logprobs), ("answer", session.logprobs)):
        if any(token is not None for token in scores):
            write(f"\n{name}\n{table_of(scores)}\n")


@dataclass(frozen=True)
class AnswerSettings:
    """How a prompt is answered."""

    system: str
    raw: bool
    params: SamplingParams
    full: Overflow
    limit: int | None
    ctx: int | None
    seed: int
    variables: dict[str, Any] | None
    reasoning_format: str
    capture: tuple[str, ...]
    decoding: DecodingOptions
    gap: Gap | None = None
    silent: bool = False


def _begin(
    model: graphml.Model, text: str, how: AnswerSettings, bars: Bars
) -> tuple[graphml.Session | Found, str, Iterator[str]]:
    """What has the answer's figures, the text that the model is given, and the pieces of its answer."""
    seed, kept = seed_of(how.seed), bool(how.capture)
    plain = how.raw or how.gap is not None or not model.has_template
    for option, value in (("--system", how.system), ("--chat-template-kwargs", how.variables)):
        if value and plain:
            raise UsageError(f"{option}: wanted a model with a chat template, no --raw and no --suffix")
    if how.decoding.heal and not plain:
        raise UsageError("--heal: wanted --raw, or a model without a chat template, which ends the prompt")
    if plain:  # there is no reasoning, whose budget a file of settings may say
        how = replace(how, params=replace(how.params, reasoning_budget=-1))
    if how.decoding.whole:
        return _begin_whole(model, text, how, bars, plain)
    if plain:
        session = model.session(how.ctx, seed, capture=how.capture, history=kept)
        gap = how.gap
        ids = (
            model.encode(text, parse_special=True)
            if gap is None
            else model.fill_ids(text, gap.suffix, gap.files, gap.order, how.limit, how.ctx)
        )
        full, params = how.full, how.params
        if how.decoding.heal:
            healed = model.heal(ids, params)
            ids, params = healed.ids, healed.params
        tokens = session.generate(ids, params, how.limit, overflow=full.overflow, keep=full.keep)
        return session, text, (token.piece for token in tokens)
    chat = model.chat(
        max_tokens=how.limit, system=how.system, n_ctx=how.ctx, seed=seed, variables=how.variables,
        overflow=how.full.overflow, keep=how.full.keep, reasoning_format=how.reasoning_format,
        capture=how.capture, history=kept,
    )  # fmt: skip
    chat.add_user(text)
    return chat.session, chat.render_turn(), text_of(chat.events(how.params), bars, how.silent)


def _begin_whole(
    model: graphml.Model, text: str, how: AnswerSettings, bars: Bars, plain: bool
) -> tuple[Found, str, Iterator[str]]:
    """The same of an answer that is found as a whole."""
    way, params = how.decoding, how.params
    limits = how.limit, how.ctx, seed_of(how.seed), how.full
    away = way.negative_prompt
    if plain:
        ids, other = (
            None if prompt is None else model.encode(prompt, parse_special=True) for prompt in (text, away)
        )
        answer = found_whole(model, way, Asked(ids or [], params, *limits, other))
        return answer, text, answer.pieces(model, params)
    asked: dict[str, Any] = {"variables": how.variables, "reasoning_format": how.reasoning_format}
    prompt = chat_prompt_of(model, how.system, text, params=params, **asked)
    negative = None if away is None else chat_prompt_of(model, how.system, away, **asked).ids
    answer = found_whole(model, way, Asked(prompt.ids, params, *limits, negative))
    return answer, prompt.text, text_of(answer.events(prompt), bars, how.silent)


def _shown(pieces: Iterator[str], bars: Bars, colours: TokenColours | None) -> str:
    """Write the pieces as they come, unless there is nothing to write them; and a line's end behind them."""
    answer: list[str] = []
    for piece in pieces:
        bars.close()
        if colours is not None:
            if not answer and in_colours():
                colours.write_prompt()
            colours.write(piece)
        answer.append(piece)
    text = "".join(answer)
    if colours is not None:
        if not text.endswith("\n"):
            write("\n")
        colours.explain()
    return text
