"""`graphml chat`: a conversation, at a terminal or line by line from a pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.api.chat_prompt import ChatSettings
from graphml.cli import options
from graphml.cli.console import Bars, remark
from graphml.cli.conversation.commands import take
from graphml.cli.conversation.completions import completions
from graphml.cli.conversation.conversation import Conversation
from graphml.cli.conversation.line_input import open_input
from graphml.cli.conversation.tool_calls import Permission, offered_tools
from graphml.cli.opening import find, load, seed_of
from graphml.cli.structure_files import with_files
from graphml.cli.template_variables import template_variables, with_template
from graphml.cli.typer_options import grouped
from graphml.errors import UsageError
from graphml.runtime.overflow import Overflow
from graphml.sampling import SamplingParams
from graphml.sampling.structured.params_structure import matcher_of

HELP = "/help lists the commands, Ctrl-D ends."


@grouped
def chat(
    opening: options.Talking,
    params: SamplingParams,
    full: Overflow,
    model: options.Model = None,
    system: options.System = "",
    max_tokens: options.MaxTokens = options.CHAT_MAX_TOKENS,
    ctx: options.Context = None,
    seed: options.Seed = -1,
    variables: options.Variables = None,
    chat_template: options.Template = None,
    reasoning_format: options.ReasoningFormat = "auto",
    grammar_file: options.GrammarFile = None,
    schema_file: options.SchemaFile = None,
    tools: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py",
            help="Offer the functions of a Python file, which is run; each call is asked about. May be given "
            "again.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Call tools without asking.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print a line about the speed after each answer.")
    ] = False,
) -> None:
    """Talk with a model. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    given_variables = template_variables(variables)
    opening = with_template(opening, chat_template)
    ChatSettings(reasoning_format=reasoning_format)  # a wrong one is told at once
    params = with_files(params, grammar_file, schema_file)
    if params.prompt_logprobs is not None:
        raise UsageError("--prompt-logprobs: wanted graphml run; a conversation shows its answers' alone")
    offered = offered_tools(tools, yes)
    limit = None if max_tokens < 0 else max_tokens
    given = open_input(completions)
    with Bars() as bars:
        with given.while_working():
            opened = load(find(model, opening, bars), opening, bars)
        with opened:
            with given.while_working():
                talk = opened.chat(
                    system, limit, n_ctx=ctx, seed=seed_of(seed), variables=given_variables,
                    overflow=full.overflow, keep=full.keep, reasoning_format=reasoning_format,
                )  # fmt: skip
            matcher_of(params, opened.tokenizer)  # a wrong grammar is told at once
            conversation = Conversation(
                opened, talk, params, bars, stats, tools=offered, may_call=Permission(bars, yes)
            )
            remark(f"{opened.path.name}: {HELP}")
            for text in given.lines:
                try:
                    with given.while_working():
                        take(conversation, text)
                except KeyboardInterrupt:
                    if not given.interactive:
                        raise
                if conversation.ended:
                    break
    if conversation.failed and not given.interactive:
        raise typer.Exit(1)
