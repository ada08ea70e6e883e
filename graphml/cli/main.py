"""The command `graphml`: finds the command's file, imports that alone, and turns errors into one line.

Exit codes: 0, 1 for an error that graphml raised, 2 for wrong arguments, 130 for Ctrl-C.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import keyword
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import graphml
from graphml import settings
from graphml.cli.help_pages import SETTINGS, HelpedCommand, HelpedGroup, flags_of, unknown_options
from graphml.cli.terminal.console import be_quiet, print_error
from graphml.errors import GraphmlError, UsageError

TITLES = {
    "Use a model": ("run", "chat", "serve", "batch", "embed", "rerank", "tokenize"),
    "Models and this machine": (
        "info", "plan", "placement", "doctor", "pull", "models", "rm", "cache",
    ),
    "Measure": ("perplexity", "imatrix", "profile", "bench", "simulate", "tune"),
    "Graphs and numbers": ("graph", "diff", "explain", "compare", "bisect"),
    "Train and quantise": ("finetune", "adapter", "cvector", "quantize", "gguf"),
    "Write architectures, ops and backends": (
        "verify", "new-arch", "import", "convert", "test-backend", "test-op", "fuzz", "report",
    ),
}  # fmt: skip
_OUR_WORDS, _TYPED = "graphml.words", "graphml.typed"
_WITH_WORDS = ("gguf", "cache", "models", "bench")
"""Commands behind which other programs have words, as `cache clear`."""
COMMANDS = tuple(name for names in TITLES.values() for name in names)


def module_of(command: str) -> str:
    """The name of a command's file and function; a word of Python's own ends in `_`."""
    name = command.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


@functools.cache  # typer takes 20 ms to make one from its options, and again to read these
def _command(name: str, function: Any) -> Any:
    """The command of a file's function, or of its group."""
    if isinstance(function, typer.Typer):  # a command with commands of its own
        return typer.main.get_group(function)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    # Of a command that reads its flags itself.
    settings = getattr(function, "context_settings", None)
    single.command(name, cls=HelpedCommand, context_settings=settings)(function)
    return typer.main.get_command(single)


class Commands(HelpedGroup):
    """The commands by name, each imported when it is asked for, and the end of all errors."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def titled_commands(self, ctx: Any) -> dict[str, list[str]]:
        """Their names, by what they are for."""
        return {title: list(names) for title, names in TITLES.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was typed, or ours for it; an error names the nearest of one that there is not."""
        ours = args[0] in COMMANDS and not (args[0] in _WITH_WORDS and len(args) > 1)
        if not (ours or args[0].startswith("-") or ctx.resilient_parsing):
            from graphml.cli.other_command_lines import meaning, translated  # not for each command
            from graphml.cli.second_words import printed_text

            name, *args = translated(args)
            if (text := printed_text([name, *args])) is not None:
                print(text)
                ctx.exit()
            if name in ("--help", "--version"):
                print(ctx.get_help() if name == "--help" else f"graphml {graphml.__version__}")
                ctx.exit()
            if name not in COMMANDS:
                ctx.fail(f"No such command {name[:80]!r}.{meaning(name, COMMANDS)}")
            args = [name, *args]
        known, command, args = super().resolve_command(ctx, args)
        if known == "run" and self._converses(ctx, command, args):
            known, command, args = super().resolve_command(ctx, ["chat", *args])
        ctx.meta[_TYPED] = list(args)
        if unknown_options(command, args):
            from graphml.cli.other_command_lines import in_our_words  # for these alone

            ctx.meta[_OUR_WORDS] = []  # an error of one of these says what is wrong with it
            args = in_our_words(str(known), command, args)
            ctx.meta[_OUR_WORDS] = list(args)  # its reader takes words out of the other
        return known, command, args

    def _converses(self, ctx: Any, run: Any, args: list[str]) -> bool:
        """Whether a person at a terminal states no prompt, and nothing that a conversation has not."""
        asks_help = {"-h", "--help", "--help-all"} & set(args)
        if ctx.resilient_parsing or asks_help or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        stated = run.make_context("run", list(args), parent=ctx, resilient_parsing=True).params
        if stated["prompt"] is not None or stated["files"]:
            return False
        from graphml.loading.fetch import names_model

        words = stated["words"] or []
        only_model = not words or (len(words) == 1 and names_model(words[0]))
        return only_model and not unknown_options(self.get_command(ctx, "chat"), args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, from the file of that name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        name = module_of(cmd_name)
        if self._listing:
            summary = _summary(Path(__file__).with_name(f"{name}.py"), name)
            if summary is not None:
                return TyperCommand(cmd_name, help=summary)
        return _command(cmd_name, getattr(importlib.import_module(f"graphml.cli.{name}"), name))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which names every command and imports none."""
        with self._listed():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """What the word on the command line may become; the shell waits for it."""
        with self._listed():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listed(self) -> Iterator[None]:
        """Within, commands are no more than their names and what they do."""
        self._listing = True
        try:
            yield
        finally:
            self._listing = False

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of graphml becomes one line on stderr."""
        try:
            _show_log(settings.log())
            result = self._invoked(ctx)
            sys.stdout.flush()
        except GraphmlError as error:
            if settings.debug():
                raise
            print_error(_with_note(_by_flag(error, ctx), ctx))
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise typer.Exit(130) from None
        except MemoryError as error:
            if settings.debug():
                raise
            print(f"graphml: not enough memory{f': {error}' if str(error) else ''}", file=sys.stderr)
            raise typer.Exit(1) from None
        except OSError as error:
            if settings.debug():
                raise
            if not isinstance(error, BrokenPipeError):  # the reader of stdout went away, which is no news
                print_error(error)
            # What could not be written is still there: Python would complain once more when it flushes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        return result

    def set_defaults(self, command: Any, ctx: Any, args: list[str]) -> None:
        """Let a command's options have what the file of settings states, if there is one."""
        named = [name for name in SETTINGS if ctx.parent.params.get(name) is not None]
        named += [word for word in args if word.partition("=")[0] in ("--config", "--profile")]
        if named or settings.has_config_file():
            from graphml.cli.options.config_file import set_defaults  # only where there is a file

            set_defaults(command, ctx, args)

    def _invoked(self, ctx: Any) -> Any:
        """Run the command; an error of the command line says what words of other programs mean here."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not of click, which Typer has as a copy of its own
                raise
            from graphml.cli.other_command_lines import hint  # for errors alone
            from graphml.cli.value_flags import near_flags, wrong_value

            if (text := wrong_value(error)) is not None:
                error.message = text  # type: ignore[attr-defined]

            if hasattr(error, "possibilities"):  # click's are near in letters alone
                unknown: Any = error
                own = flags_of(unknown.ctx.command) | flags_of(ctx.command)
                unknown.possibilities = near_flags(own, unknown.option_name)
            name = str(ctx.invoked_subcommand)
            left = ctx.meta.get(_OUR_WORDS, ())
            if wanted := hint(error, name, ctx.command.get_command(ctx, name), left):
                raise UsageError(wanted) from None
            raise


def _by_flag(error: GraphmlError, ctx: Any) -> GraphmlError:
    """The error by the flag that was typed, where its text names an argument of the library."""
    name, colon, rest = str(error).partition(":")
    name = name.replace("-", "_")
    if type(error) is UsageError and colon:
        command = ctx.command.get_command(ctx, ctx.invoked_subcommand)
        for param in getattr(command, "params", ()):
            if param.param_type_name == "option" and name in (param.name, f"n_{param.name}"):
                typed = {word.partition("=")[0] for word in ctx.meta.get(_TYPED, ())}
                flags = [flag for flag in param.opts if flag.startswith("--")]
                typed_flags = [flag for flag in flags if flag in typed]
                return UsageError(f"{max(typed_flags or flags or param.opts, key=len)}:{rest}")
    return error


def _with_note(error: GraphmlError, ctx: Any) -> GraphmlError:
    """The error, and which of the options that it names a file of settings states."""
    if "graphml.config_file" not in ctx.meta:
        return error
    from graphml.cli.options.config_file import note  # only where there is a file

    added = note(str(error), ctx)
    return type(error)(f"{error}{added}") if added and type(error) is UsageError else error


def _summary(file: Path, name: str) -> str | None:
    """The docstring of a command's function, without importing its file; None where that cannot be read.

    Of a command with commands of its own it is that of its callback.
    """
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError):  # installed without sources
        return None
    functions = {function.name: function for function in body if isinstance(function, ast.FunctionDef)}
    callbacks = [
        function for function in functions.values() if any(map(_is_callback, function.decorator_list))
    ]
    matching = [functions[name]] if name in functions else callbacks
    return ast.get_docstring(matching[0]) if matching else None


def _is_callback(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "callback"


app = typer.Typer(
    cls=Commands,
    name="graphml",
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_log(level: str | None) -> None:
    if level is not None:
        from graphml.system.log_output import show_log  # not for each start

        show_log(level)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"graphml {graphml.__version__}")
        raise typer.Exit


@app.callback()
def graphml_command(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="File of settings; by default graphml.toml in the user's folder of settings.",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use the settings of [profiles.NAME] of that file.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="Show the log on stderr: debug, info, warning or error."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No notes and no progress bars on a terminal.")
    ] = False,
) -> None:
    """Run language models as static op graphs. Without MODEL, the commands use SmolLM2-135M-Instruct."""
    _show_log(log_level)
    be_quiet(quiet)


def main() -> None:
    """Run the command line."""
    gc.set_threshold(50_000, 20, 100)  # graphs are many small objects, which stay
    # Python has None where the descriptor was closed.
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A model may say what the encoding lacks; Windows has one of few letters for files and pipes.
            encoding = "utf-8" if sys.platform == "win32" else stream.encoding
            stream.reconfigure(encoding=encoding, errors="replace")
    app(prog_name="graphml")
