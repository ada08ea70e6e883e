"""Options that come together: a dataclass of them is one parameter of a command's function.

Knows Typer's way of reading a function's parameters, and how a field states its option; knows no option.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from graphml.options.option_fields import Option, Real, Whole, default_of


class Shown:
    """Says which fields of a dataclass are a command's options; the others keep their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True)
class _Group:
    """A parameter that is made of options: its dataclass, and the fields that have one."""

    made: Any
    fields: tuple[Field[Any], ...]

    def parameters(self) -> list[Parameter]:
        types = get_type_hints(self.made, include_extras=True)
        return [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=_default(one), annotation=_type(one, types))
            for one in self.fields
        ]

    def make(self, given: dict[str, Any]) -> Any:
        """The value; takes what it is made of from what was given."""
        return self.made(**{one.name: _value(one, given.pop(one.name)) for one in self.fields})


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of a dataclass's type are its fields' options, behind the other options.

    A field states its option (`graphml.options.option_fields`), or has the annotation and default that Typer
    wants of a parameter. Fields of two dataclasses of a command need different names.
    """
    hints = get_type_hints(command, include_extras=True)
    names = list(signature(command).parameters)
    groups = {name: group for name in names if (group := _group(hints[name])) is not None}
    shown = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[name])
        for name, one in signature(command).parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        shown += group.parameters()

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = {name: group.make(given) for name, group in groups.items()}
        command(**given, **made)

    called.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in shown}
    return called


def flags_given(context: typer.Context, *kinds: Any) -> list[str]:
    """The flags of options of these dataclasses that the command line has, the last name of each."""
    every = [one for kind in kinds for one in fields(kind)]
    sources = {one.name: context.get_parameter_source(one.name) for one in every}
    given = [one for one in every if getattr(sources[one.name], "name", "") == "COMMANDLINE"]
    return [one.metadata["option"].flags[-1] for one in given]


def typer_option(option: Option, default: Any) -> Any:
    """The option as Typer wants it."""
    least, most = option.range.ends if isinstance(option.range, (Whole, Real)) else (None, None)
    return typer.Option(
        *option.flags,
        help=option.help,
        metavar=option.metavar,
        min=least,
        max=most,
        show_default=option.shown or default not in (None, "", ()),
    )


def _group(hint: Any) -> _Group | None:
    made = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if not is_dataclass(made):
        return None
    chosen = {one.name: one for one in fields(made)}
    for said in get_args(hint)[1:] if made is not hint else ():
        chosen = {name: chosen[name] for name in said.names}
    return _Group(made, tuple(chosen.values()))


def _type(one: Field[Any], types: dict[str, Any]) -> Any:
    option = one.metadata.get("option")
    if option is None:
        return types[one.name]
    kind: Any = option.on_command_line or types[one.name]
    return Annotated[list[kind] | None if option.repeated else kind, typer_option(option, _default(one))]


def _default(one: Field[Any]) -> Any:
    """None for an option that may be given several times: the field's default is what is then made."""
    option = one.metadata.get("option")
    return None if option is not None and option.repeated else one.default


def _value(one: Field[Any], given: Any) -> Any:
    option = one.metadata.get("option")
    if option is not None and option.repeated and not given:
        return default_of(one)
    return given if option is None or option.parse is None else option.parse(given)
