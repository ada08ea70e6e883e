"""`graphml chat`: a conversation with a model or a server's, at a terminal or line by line from a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from graphml.api.chat_prompt import ChatSettings
from graphml.api.mcp_servers import McpServers
from graphml.cli.conversation.commands import completions, load_chat, take
from graphml.cli.conversation.conversation import Conversation
from graphml.cli.conversation.line_input import LineInput, open_input
from graphml.cli.conversation.server_chat import ServerChat, fields_of
from graphml.cli.conversation.server_stream import ServerStream
from graphml.cli.conversation.tool_calls import Permission, check_asking, offered_tools
from graphml.cli.options import options
from graphml.cli.options.answer_options import check_template, template_variables, with_files, with_template
from graphml.cli.options.checks import check_file, key_of
from graphml.cli.options.opening import find, load, seed_of
from graphml.cli.options.typer_options import flags_given, grouped, is_given, sources_by_field
from graphml.cli.terminal.console import Bars, remark
from graphml.cli.terminal.denoising_view import Visual, check_visual
from graphml.errors import UsageError
from graphml.runtime.blocks.overflow import ChatOverflow
from graphml.sampling import SamplingParams
from graphml.sampling.settings.sampling_defaults import ChosenSampling, chosen_sampling
from graphml.text.template_process import PROCESSES

HELP = "/help lists the commands, Ctrl-D ends."


@grouped
def chat(
    context: typer.Context,
    opening: options.Talking,
    params: SamplingParams,
    full: ChatOverflow,
    model: options.Model = None,
    system: options.System = "",
    max_tokens: options.MaxTokens = -1,
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
            help="Functions of a Python file, which is run, as tools; calls ask for permission. May be given "
            "again.",
        ),
    ] = None,
    mcp: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="MCP servers, as mcp.json names them, whose tools are offered; calls ask for permission.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Call tools without asking for permission.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of a server with OpenAI's protocol to chat with, in place of a local model.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="API key of the server, or @FILE."),
    ] = None,
    load_file: Annotated[
        Path | None,
        typer.Option("--load", metavar="FILE", show_default=False,
                     help="Go on from a conversation that /save wrote, as /load does."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print tokens per second after each answer.")
    ] = False,
    diffusion_visual: Visual = False,
) -> None:  # fmt: skip
    """Talk with a model. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    given_variables = template_variables(variables)
    ChatSettings(reasoning_format=reasoning_format)  # a wrong one is told at once
    params = with_files(params, grammar_file, schema_file)
    if params.prompt_logprobs is not None:
        raise UsageError("--prompt-logprobs: wanted graphml run; a conversation shows its answers' alone")
    if server is not None:
        flags = {
            "model": "MODEL", "ctx": "--ctx", "chat_template": "--chat-template",
            "diffusion_visual": "--diffusion-visual",
        }  # fmt: skip
        here = [flag for name, flag in flags.items() if is_given(context, name)]
        check_no_model([*here, *flags_given(context, options.Opening, ChatOverflow)])
    elif api_key is not None:
        raise UsageError("--api-key: wanted --server too, whose key it is")
    check_file("--load", load_file)
    if load_file is not None and system:
        raise UsageError("--load: wanted no --system: the file's conversation has its own system message")
    opening = with_template(opening, chat_template)
    check_asking(tools, mcp, yes)
    asked = sources_by_field(context, SamplingParams)
    limit = None if max_tokens < 0 else max_tokens
    inputs = open_input(completions)
    with Bars() as bars, ExitStack() as held:
        with inputs.while_working():
            servers = None if mcp is None else held.enter_context(McpServers(mcp))
            offered = offered_tools(tools, servers)
            if server is not None:
                fields_of(params, asked)  # a setting that cannot be told is an error at once
                talk = ServerChat(
                    ServerStream(server, key_of(api_key or "")), system, limit, seed_of(seed),
                    given_variables, reasoning_format,
                )  # fmt: skip
                conversation = Conversation(None, talk, ChosenSampling(params, asked), bars, stats)
                remark(f"{talk.greeted()} at {server}: {HELP}")
            else:
                PROCESSES.prepare()  # while the model is opened
                opened = held.enter_context(load(find(model, opening, bars), opening, bars))
                check_template(opened, chat_template)
                if diffusion_visual:
                    check_visual(opened)
                own = opened.chat(
                    max_tokens=limit, system=system, n_ctx=ctx, seed=seed_of(seed), variables=given_variables,
                    overflow=full.overflow, keep=full.keep, reasoning_format=reasoning_format,
                )  # fmt: skip
                stated = opened.sampling_defaults
                conversation = Conversation(
                    opened, own, chosen_sampling(params, asked, stated), bars, stats,
                    defaults=chosen_sampling(SamplingParams(), {}, stated),
                )  # fmt: skip
                conversation.shows_denoising = diffusion_visual
                conversation.check(conversation.sampling)
                remark(f"{opened.path.name}: {HELP}")
        conversation.tools, conversation.may_call = offered, Permission(bars, yes)
        if load_file is not None:
            load_chat(conversation, str(load_file))
        converse(conversation, inputs)
    if conversation.failed and not inputs.interactive:
        raise typer.Exit(1)


def check_no_model(flags: Sequence[str]) -> None:
    """UsageError where one of these is given, which say how a model is opened here."""
    if flags:
        raise UsageError(f"--server: wanted no {', '.join(flags)}: the model is the server's")


def converse(conversation: Conversation, inputs: LineInput) -> None:
    """Take inputs until the conversation ends, or there are no more."""
    for text in inputs.lines:
        try:
            with inputs.while_working():
                take(conversation, text)
        except KeyboardInterrupt:
            if not inputs.interactive:
                raise
        if conversation.ended:
            return
