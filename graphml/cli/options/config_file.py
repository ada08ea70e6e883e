"""`graphml.toml`: defaults of options by command and by model, and profiles of them.

A value is checked as the option on the command line is: by the command's own parameters, or by the flags of
`graphml serve`. Knows tables, their order, and how options are named; nothing of what any option means.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

from graphml import settings
from graphml.cli.options.typer_options import CONFIG_FILE
from graphml.errors import UsageError, did_you_mean
from graphml.loading import fetch
from graphml.options.option_fields import Option, options_of
from graphml.runtime.programs.load_options import LoadOptions
from graphml.sampling import SamplingParams
from graphml.server.options.command_line import BY_NAME, other_name, parsed
from graphml.system.read_files import guarded, plain_text

LARGEST_BYTES: Final = 1 << 20
SHARED: Final = ("defaults", "models", "profiles")
WHICH_MODEL: Final = ("named", "hf", "model")


@dataclass(frozen=True)
class Stated:
    """A value of the file, the name of its option, and where it stands: file, table and key."""

    value: Any
    flag: str
    where: str


def read_tables(path: Path, commands: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The tables of a file; UsageError for a file that cannot be read, and for a table that is not known."""
    what = "wanted a file of settings in TOML"
    text = plain_text(path, UsageError, LARGEST_BYTES, what)
    with guarded(path, UsageError, what):
        tables = tomllib.loads(text)
        _check_tables(path, tables, (*SHARED, *commands))
    return tables


def _check_tables(path: Path, tables: Mapping[str, Any], known: Sequence[str]) -> None:
    for name, table in tables.items():
        if name not in known and not isinstance(table, dict):
            raise UsageError(
                f"{path}: {name}: wanted options below a table: [defaults] for every command, [run] or "
                "another command's, [models.NAME] or [profiles.NAME]"
            )
        if name not in known:
            raise UsageError(
                f"{path}: {name}: wanted a table [defaults], [models.NAME], [profiles.NAME] or [COMMAND]."
                f"{did_you_mean(name, known, 1)}"
            )
        for inner, value in (
            table.items() if name in SHARED[1:] and isinstance(table, dict) else [(name, table)]
        ):
            if not isinstance(value, dict):
                raise UsageError(f"{path}: {inner}: wanted a table, got {value!r:.40}")


def chosen_tables(
    path: Path, commands: Iterable[str], command: str, profile: str | None, model: str | None
) -> list[tuple[str, dict[str, Any]]]:
    """The tables that count for a command, each with what names it in errors; a later one counts more.

    model: as it was named, None where the file may name it.
    """
    tables = read_tables(path, commands)
    chosen = [("defaults", tables.get("defaults", {})), (command, tables.get(command, {}))]
    profiles, last = tables.get("profiles", {}), []
    if profile is not None:
        if profile not in profiles:
            there = f"there are {', '.join(profiles)}" if profiles else "there is none"
            raise UsageError(
                f"--profile: {path} has no [profiles.{profile}]: {there}.{did_you_mean(profile, profiles, 1)}"
            )
        last = [(f"profiles.{profile}", profiles[profile])]
    stated = [str(table[key]) for _, table in (*chosen, *last) for key in ("model", "hf") if key in table]
    name = model or (stated or [fetch.DEFAULT_MODEL])[-1]
    # A name counts more than a pattern.
    for key in sorted((key for key in tables.get("models", {}) if _fits(name, key)), key=name.__eq__):
        table = tables["models"][key]
        if "model" in table or "hf" in table:
            raise UsageError(f'{path}: [models."{key}"]: wanted no model in it: its name says which it is')
        chosen.append((f'models."{key}"', table))
    return chosen + last


def _fits(model: str, pattern: str) -> bool:
    """Whether a model's name, or the last part of its path, is of a pattern."""
    return any(fnmatchcase(name, pattern) for name in (model, re.split(r"[/\\]", model)[-1]))


def set_defaults(command: Any, context: Any, args: list[str]) -> None:
    """Let a command's options have what the file states as their defaults.

    command, context: click's. A command that reads its flags itself takes them from `stated_flags`.
    """
    typed, left, _ = command.make_parser(context).parse_args(list(args))
    if typed.get("help"):
        return
    flags = {name: typed.get(name, context.parent.params.get(name)) for name in ("config", "profile")}
    path = _file(flags["config"], flags["profile"])
    if path is None:
        return
    if context.ignore_unknown_options:
        line = parsed(left)
        options, model = _options_of_server(), line.model or line.values.get("model", line.values.get("hf"))
    else:
        options, model = _options_of(command, context), _model_of(typed)
    stated = _stated(path, context, options, flags["profile"], model)
    context.meta[CONFIG_FILE] = stated
    context.default_map = {name: value.value for name, value in stated.items()}


def stated_flags(context: Any) -> list[tuple[str, str, list[str | bool]]]:
    """What the file states for `graphml serve`: where, the flag and its values."""
    return [(value.where, value.flag, value.value) for value in context.meta.get(CONFIG_FILE, {}).values()]


@dataclass(frozen=True)
class _Option:
    """An option of a command: its parameter, and what reads a value of the file, given where it stands.

    variable: the environment variable that decides before the file does.
    """

    name: str
    read: Callable[[str, Any], Any]
    variable: str = ""


def _stated(
    path: Path, context: Any, options: Mapping[str, _Option], profile: str | None, model: str | None
) -> dict[str, Stated]:
    """What the file states for a command, by parameter."""
    command, commands = context.info_name, context.parent.command.list_commands(context)
    stated: dict[str, Stated] = {}
    for table_name, table in chosen_tables(path, commands, command, profile, model):
        in_table: dict[str, Stated] = {}
        for key, value in table.items():
            where, option = f"{path}: [{table_name}] {key}", options.get(_long_name(key, options))
            if option is None:
                if table_name != command and _is_of_another(key, context):
                    continue
                raise UsageError(f"{where}: no such option.{did_you_mean(key, options, 1)}")
            if option.name in in_table:
                raise UsageError(f"{where}: {in_table[option.name].flag} is the same option")
            in_table[option.name] = Stated(option.read(where, value), f"--{key}", where)
        if any(name in in_table for name in WHICH_MODEL):
            stated = {name: value for name, value in stated.items() if name not in WHICH_MODEL}
        stated |= in_table
    decided = {option.name for option in options.values() if settings.is_stated(option.variable)}
    decided |= set(WHICH_MODEL if model is not None else ())
    return {name: value for name, value in stated.items() if name not in decided}


def _long_name(key: str, options: Mapping[str, _Option]) -> str:
    """The name of a command's option: of keys that llama-server has for it, short ones too, by another."""
    key = key if key in options else key.replace("_", "-")
    if key in options:
        return key
    flags = [f"--{name}" for name in options]
    return (other_name(f"--{key}", flags) or other_name(f"-{key}", flags) or key).removeprefix("--")


def _options_of(command: Any, context: Any) -> dict[str, _Option]:
    """The options of a command by their long names."""
    fields: Mapping[str, Option] = getattr(command.callback, "option_fields", {})
    return {
        name.removeprefix("--"): _Option(
            param.name,
            partial(_checked, context, param, fields.get(param.name)),
            fields[param.name].variable if param.name in fields else "",
        )
        for param in command.params
        for name in param.opts
        if param.param_type_name == "option" and name.startswith("--")
    }


def _options_of_server() -> dict[str, _Option]:
    fields = options_of(LoadOptions)
    return {
        name.removeprefix("--"): _Option(
            flag.into,
            partial(_values, switch=flag.read is None, several=flag.repeated or flag.n_values > 1),
            fields[flag.into].variable if flag.into in fields else "",
        )
        for name, flag in BY_NAME.items()
        if name.startswith("--") and (flag.read is not None or flag.value)
        if flag.into not in ("help", "version")
    }


def note(text: str, context: Any) -> str:
    """What to add to an error that names options which the file states."""
    return "".join(
        f"; {stated.where} states {stated.flag}"
        for stated in context.meta.get(CONFIG_FILE, {}).values()
        if stated.where not in text and re.search(rf"{stated.flag}(?![\w-])", text)
    )


def _file(named: str | None, profile: str | None) -> Path | None:
    """The file that is read: the named one, else the user's, if there is one."""
    path = settings.config_file() if named is None else Path(named)
    if named is None and settings.config() is None and not path.is_file():
        if profile is not None:
            raise UsageError(f"--profile: wanted a file of settings: {path}, or that of --config")
        return None
    if path.is_dir() or not path.exists():
        option = "GRAPHML_CONFIG" if named is None else "--config"
        raise UsageError(
            f"{option}: {path}: {'is a folder; wanted a file' if path.is_dir() else 'no such file'}"
        )
    return path


def _model_of(typed: Mapping[str, Any]) -> str | None:
    """The model that a command line names; None for none."""
    for name in WHICH_MODEL:
        value = typed.get(name)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if value:
            return str(value)
    words = typed.get("words") or ()
    return words[0] if words and fetch.names_model(words[0]) else None


def _is_of_another(key: str, context: Any) -> bool:
    """Whether another command has an option of this name; imports them only where it is no shared one."""
    shared = [*options_of(LoadOptions).values(), *options_of(SamplingParams).values()]
    if f"--{key}" in BY_NAME or any(f"--{key}" in field.flags for field in shared):
        return True
    commands = context.parent.command
    every = (commands.get_command(context.parent, name) for name in commands.list_commands(context))
    return any(f"--{key}" in param.opts for command in every for param in command.params)


def _values(where: str, value: Any, switch: bool, several: bool) -> list[str | bool]:
    """The values as a command line has them; UsageError for those of another type."""
    if isinstance(value, list) and not several:
        raise UsageError(f"{where}: wanted one value, got a list")
    if value == []:
        raise UsageError(f"{where}: wanted at least one value, got an empty list")
    return list(_typed(where, value if isinstance(value, list) else [value], switch))


def _typed(where: str, values: list[Any], switch: bool) -> Iterator[str | bool]:
    for value in values:
        if switch != isinstance(value, bool) or not isinstance(value, (str, int, float)):
            wanted = "true or false" if switch else "a text or a number"
            raise UsageError(f"{where}: wanted {wanted}, got {value!r:.40}")
        yield value if isinstance(value, bool) else str(value)


def _checked(context: Any, param: Any, field: Option | None, where: str, value: Any) -> Any:
    """The value as the command line would have it; UsageError where that would be refused."""
    several = bool(param.multiple)
    values = _values(where, value, bool(param.is_flag), several)
    asked: Any = values if several else values[0]
    try:
        read = param.process_value(context, asked)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of click, which Typer may have as a copy of its own
            raise
        raise UsageError(f"{where}: {getattr(error, 'message', error)}") from None
    numbers = [number for number in (read if several else [read]) if isinstance(number, (int, float))]
    if numbers and not param.is_flag and any(isinstance(v, str) for v in (value if several else [value])):
        raise UsageError(f"{where}: wanted a number, got {value!r:.40}")
    if field is not None and (several or read is not None):
        try:
            parsed = read if field.parse is None else field.parse(read)
            if field.range is not None:
                field.range.read(f"--{param.name}", parsed)
        except UsageError as error:
            raise UsageError(f"{where}: {str(error).partition(': ')[2] or error}") from None
    return asked
