"""Options that come together: a dataclass of them is one parameter of a command's function.

Knows Typer's way of reading a function's parameters, and how a field states its option; knows no option.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from graphml.cli.help_pages import GROUPS
from graphml.options.option_fields import OneOf, Option, Real, Whole, default_of

CONFIG_FILE = "graphml.config_file"
"""Key of a context's `meta` with what a file of settings states: parameter -> `Stated`."""


class Shown:
    """Says which fields of a dataclass are a command's options; the others keep their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True)
class _Group:
    """A parameter that is made of options: its dataclass, and the fields that have one."""

    kind: Any
    fields: tuple[Field[Any], ...]

    def parameters(self) -> list[Parameter]:
        types = get_type_hints(self.kind, include_extras=True)
        return [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=_default(field),
                annotation=_type(field, types, GROUPS.get(self.kind.__name__)),
            )
            for field in self.fields
        ]

    def make(self, arguments: dict[str, Any]) -> Any:
        """The value; takes what it is made of from what was given."""
        return self.kind(**{field.name: _value(field, arguments.pop(field.name)) for field in self.fields})


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of a dataclass's type are its fields' options, behind the other options.

    A field states its option (`graphml.options.option_fields`), or has the annotation and default that Typer
    wants of a parameter. Fields of two dataclasses of a command need different names.
    """
    hints = get_type_hints(command, include_extras=True)
    names = list(signature(command).parameters)
    groups = {name: group for name in names if (group := _group(hints[name])) is not None}
    shown = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=parameter.default, annotation=hints[name])
        for name, parameter in signature(command).parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        shown += group.parameters()

    @functools.wraps(command)
    def called(**arguments: Any) -> None:
        values = {name: group.make(arguments) for name, group in groups.items()}
        command(**arguments, **values)

    called.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    called.option_fields = {  # type: ignore[attr-defined] # for those who check a value before the command
        field.name: field.metadata["option"]
        for group in groups.values()
        for field in group.fields
        if "option" in field.metadata
    }
    return called


def flags_given(context: typer.Context, *kinds: Any) -> list[str]:
    """The flags of options of these dataclasses that the command line has, the last name of each."""
    return [flag for name, flag in _flags(kinds).items() if is_given(context, name)]


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line has this parameter."""
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def sources_by_field(context: typer.Context, *kinds: Any) -> dict[str, str]:
    """The options of these dataclasses that are stated: field -> the last name of its flag, or the key."""
    in_file = context.meta.get(CONFIG_FILE, {})
    return {
        name: flag if is_given(context, name) else in_file[name].where
        for name, flag in _flags(kinds).items()
        if is_given(context, name) or name in in_file
    }


def _flags(kinds: Iterable[Any]) -> dict[str, str]:
    every = [field for kind in kinds for field in fields(kind)]
    return {field.name: stated.flags[-1] for field in every if (stated := field.metadata.get("option"))}


def beginning_with(words: Iterable[str]) -> Callable[[str], list[str]]:
    """What the shell offers for the begin of a word: those of `words` that begin so."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def typer_option(option: Option, default: Any, title: str | None = None) -> Any:
    """The option as Typer wants it. title: what stands over it in the help."""
    least, most = option.range.ends if isinstance(option.range, (Whole, Real)) else (None, None)
    words = option.range.words if isinstance(option.range, OneOf) else None
    return typer.Option(
        *option.flags,
        help=option.help,
        metavar=option.metavar,
        min=least,
        max=most,
        show_default=option.shown or default not in (None, "", ()),
        rich_help_panel=title,
        autocompletion=None if words is None else beginning_with(words),
    )


def _group(hint: Any) -> _Group | None:
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if not is_dataclass(kind):
        return None
    chosen = {field.name: field for field in fields(kind) if field.metadata.get("option", field) is not None}
    for said in get_args(hint)[1:] if kind is not hint else ():
        chosen = {name: chosen[name] for name in said.names}
    return _Group(kind, tuple(chosen.values()))


def _type(field: Field[Any], types: dict[str, Any], title: str | None) -> Any:
    option = field.metadata.get("option")
    if option is None:
        return _titled(types[field.name], title)
    kind: Any = option.on_command_line or types[field.name]
    return Annotated[
        list[kind] | None if option.repeated else kind, typer_option(option, _default(field), title)
    ]


def _titled(annotation: Any, title: str | None) -> Any:
    """The annotation of an option that Typer reads, with a title over it."""
    for said in get_args(annotation)[1:]:
        if hasattr(said, "rich_help_panel") and said.rich_help_panel is None:
            said.rich_help_panel = title
    return annotation


def _default(field: Field[Any]) -> Any:
    """None for an option that may be given several times: the field's default is what is then made."""
    option = field.metadata.get("option")
    return None if option is not None and option.repeated else field.default


def _value(field: Field[Any], value: Any) -> Any:
    option = field.metadata.get("option")
    if option is not None and option.repeated and not value:
        return default_of(field)
    return value if option is None or option.parse is None else option.parse(value)
