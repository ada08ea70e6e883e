"""What `--help` shows of a command: the options that most people need; `--help-all` shows all, in groups.

Knows names of options and of the values that hold them; nothing of what they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

ALL: Final = "--help-all"
SETTINGS: Final = ("config", "profile")
"""Parameters of the program that its commands take, too."""
NAME_COLUMNS: Final = 26
SHORT: Final = 24
"""A command with no more options shows them all at once."""
GROUPS: Final = {
    "SamplingParams": "Sampling",
    "Opening": "Opening the model",
    "ModelSource": "Opening the model",
    "Overflow": "Full context",
    "ChatOverflow": "Full context",
    "DecodingOptions": "Other ways of decoding",
    "InfillOptions": "Fill in the middle",
    "CaptureOptions": "Captured values",
    "ModelOptions": "Models",
    "LengthOptions": "Tests",
    "SettingOptions": "Settings, each combination of which is measured",
    "RunOptions": "How it is measured",
    "MeasuredServers": "Servers",
    "OutputOptions": "Output",
}
"""The class whose fields are options -> the title over them; of these the short page has `COMMON`."""
COMMON: Final = frozenset(
    {
        "model", "hf", "offline", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "stop", "json-schema",
        "grammar", "logprobs", "backend", "threads", "kv", "gpu-layers", "quant", "lora", "template", "arch",
        "shape", "n-prompt", "n-gen", "n-depth", "n-parallel", "peer", "repetitions", "server", "clients",
        "output",
    }
)  # fmt: skip


def _store_once(ctx: Any, option: Any, store: Callable[[Any, Any], None], value: Any, state: Any) -> None:
    """Store an option's value; again it is refused, but of a list, whose METAVAR has a comma, joined."""
    before = state.opts.get(option.dest)
    if before is None and option.dest in SETTINGS and ctx.parent is not None:
        before = ctx.parent.params.get(option.dest)
    if before is not None:
        if "," not in (option.obj.metavar or ""):
            flag = max([*option._long_opts, *option._short_opts], key=len)
            ctx.fail(f"{flag}: wanted once; got {str(before)!r:.80} and {value!r:.80}")
        value = f"{before},{value}"
    store(value, state)


def flags_of(command: Any) -> dict[str, Any]:
    """The flags of a command's options -> the option; None has none."""
    return {
        flag: param
        for param in getattr(command, "params", ())
        if param.param_type_name == "option"
        for flag in (*param.opts, *param.secondary_opts)
    }


USUAL: Final = {"gpu_layers": ("-1", "all", "auto", "max"), "ctx": ("0",)}
"""Option -> values in llama.cpp that mean what is so without it: all layers that fit, the model's context."""


def unknown_options(command: Any, words: Iterable[str]) -> bool:
    """Whether a line may have options or values that the command has not, and does not read itself."""
    own, line = flags_of(command), [*words, ""]
    if getattr(command, "ignore_unknown_options", False):
        return False
    for word, after in pairwise(line):
        option, equals, value = word.partition("=")
        if word.startswith("-") and option not in own:
            return True
        if option in own and (value if equals else after) in USUAL.get(own[option].name, ()):
            return True
    return False


class _Helped:
    """The pages of a command; those below make it one of Typer's kinds."""

    _whole = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer; `--help-all` is `--help` of all options."""
        options = takewhile("--".__ne__, args)
        if isinstance(self, TyperGroup):  # behind the name of a command it is that command's
            options = takewhile(lambda word: word.startswith("-"), options)
        if ALL in options:
            self._whole, args = True, ["--help"]
        try:
            if self._takes_settings(ctx) and not ctx.resilient_parsing and not self._whole:
                ctx.parent.command.set_defaults(self, ctx, args)
            return list(super().parse_args(ctx, args))  # type: ignore[misc]
        finally:
            self._whole = False

    def make_parser(self, ctx: Any) -> Any:
        """As Typer; a command takes the options of the program that name its settings, too."""
        parser = super().make_parser(ctx)  # type: ignore[misc]
        for param in ctx.parent.command.params if self._takes_settings(ctx) else ():
            if param.name in SETTINGS:
                param.add_to_parser(parser, ctx)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            if option.action == "store":
                option.process = partial(_store_once, ctx, option, option.process)
        return parser

    def _takes_settings(self, ctx: Any) -> bool:
        """Whether it is one of the program's commands: the program and commands of commands take none."""
        return ctx.parent is not None and hasattr(ctx.parent.command, "set_defaults")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and the commands of a command that has some."""
        self._format_options(ctx, formatter)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def _format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options under their titles."""
        arguments: list[tuple[str, str]] = []
        options: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        params = ctx.command.get_params(ctx)
        n_options = sum(param.param_type_name == "option" for param in params)
        n_left = 0
        for param in params:
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                arguments.append(record)
            elif self._whole or n_options <= SHORT or is_common(param):
                options[getattr(param, "rich_help_panel", None) or "Options"].append(record)
            else:
                n_left += 1
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments, NAME_COLUMNS)
        for title in sorted(options, key="Options".__ne__):
            with formatter.section(title):
                formatter.write_dl(options[title], NAME_COLUMNS)
        if n_left:
            formatter.write_paragraph()
            formatter.write_text(f"{n_left} more options: {ctx.command_path} {ALL}")


class HelpedCommand(_Helped, TyperCommand):
    """A command with a short page of help, and a long one."""


class HelpedGroup(_Helped, TyperGroup):
    """The same of a command with commands of its own, whose summaries are whole."""

    def titled_commands(self, ctx: Any) -> dict[str, list[str]]:
        """The names of its commands by the title over them."""
        return {"Commands": list(self.list_commands(ctx))}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their titles."""
        for title, names in self.titled_commands(ctx).items():
            helps = [str(getattr(self.get_command(ctx, name), "help", "")) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, text.split("\n\n")[0]) for name, text in zip(names, helps, strict=True)]
                )


def is_common(param: Any) -> bool:
    """Whether the short page of a command with many options has this one; its own options are all there."""
    is_own = getattr(param, "rich_help_panel", None) is None
    return is_own or param.required or any(name.removeprefix("--") in COMMON for name in param.opts)
