"""Tools that a model may call: Python functions, or descriptions in OpenAI's form.

A function's schema follows from its signature, its annotations and its docstring; arguments of a call become
the types of those. Knows functions and schemas; nothing of models, formats or conversations.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from graphml.errors import UsageError, json_type
from graphml.sampling.schemas.type_schemas import schema_of_annotation, states_schema
from graphml.text.chat_template import check_nesting

AnyTool: TypeAlias = "Callable[..., Any] | Mapping[str, Any] | Tool"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECTION: Final = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?)\s*:\s*$")
_ARGUMENT: Final = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_LATER: Final = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
_FIELD: Final = re.compile(r"^\s*:param\s+(?:[\w\[\], .|]+\s)?(\w+)\s*:\s*(.+)$")


@dataclass(frozen=True)
class Tool:
    """A tool: name, description, the JSON schema of its parameters, and the function that does it, if any."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any] | None = None

    def as_openai(self) -> dict[str, Any]:
        """The form that requests and chat templates have."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }

    def call(self, arguments: Mapping[str, Any]) -> str:
        """What the function returns for these arguments, as text: text as it is, all else as JSON.

        An error of the function, or arguments that do not fit, become text for the model: "Error: ...".
        """
        if self.function is None:
            raise UsageError(f"tools: {self.name} is a description without a function, which cannot be run")
        try:
            values = _given(self.function, arguments)
            result = self.function(**values)
        except Exception as error:
            return f"Error: {type(error).__name__}: {error}"
        return result if isinstance(result, str) else _as_json(result)


def tools_of(tools: object) -> tuple[Tool, ...]:
    """The tools of functions and descriptions; UsageError for others, or for a name given twice."""
    if tools is None:
        return ()
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
        raise UsageError(f"tools: wanted a list of functions or descriptions, got {json_type(tools)}")
    offered = tuple(tool_of(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    names = [tool.name for tool in offered]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"tools: wanted each name once, got {twice} twice")
    return offered


def tool_of(tool: object, where: str = "tool") -> Tool:
    """The tool of one function or description."""
    if isinstance(tool, Tool):
        return tool
    if isinstance(tool, Mapping):
        return _described(tool, where)
    if isinstance(tool, type):
        raise UsageError(
            f"{where}: wanted a function or a description as OpenAI has it, got the class {tool.__name__:.80}"
        )
    if callable(tool):
        return _of_function(tool, where)
    raise UsageError(f"{where}: wanted a function or a description as OpenAI has it, got {tool!r:.80}")


def _described(tool: Mapping[str, Any], where: str) -> Tool:
    kind, function = tool.get("type", "function"), tool.get("function", tool)
    if kind != "function" or not isinstance(function, Mapping):
        raise UsageError(f"{where}: wanted a tool of type 'function', got {kind!r:.80}")
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where}.name: wanted 1 to 64 letters, digits, _, - or dots, got {name!r:.80}")
    if not isinstance(description, str):
        raise UsageError(f"{where}.description: wanted text, got {json_type(description)}")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise UsageError(f"{where}.parameters: wanted a JSON schema, got {json_type(parameters)}")
    check_nesting(f"{where}.parameters", parameters)
    return Tool(name, description, parameters)


def _of_function(function: Callable[..., Any], where: str) -> Tool:
    plain = _plain(function)
    name = getattr(plain, "__name__", "")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: wanted a function with a name of 1 to 64 letters, digits, _, - or dots, got "
            f"{f'the name {name!r:.80}' if name else repr(plain)[:80]}"
        )
    if any(kind(plain) for kind in _LATER):
        raise UsageError(
            f"{where}: wanted a function that returns its result; {name} is async or a generator"
        )
    properties: dict[str, Any] = {}
    required = []
    typed_parameters = _parameters(function, name)
    description, descriptions = _docstring(
        inspect.getdoc(plain) or "", {parameter.name for parameter, _ in typed_parameters}
    )
    for parameter, kind in typed_parameters:
        place = f"{name}.{parameter.name}"
        schema = {} if kind is parameter.empty else schema_of_annotation(kind, f"tools: {place}")
        if parameter.name in descriptions:
            schema = {**schema, "description": descriptions[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema = {**schema, "default": _default(parameter.default, place)}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(name, description, parameters, function)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a partial one calls."""
    return function.func if isinstance(function, functools.partial) else function


def _parameters(function: Callable[..., Any], name: str) -> list[tuple[inspect.Parameter, Any]]:
    """The parameters with their types, annotations as text resolved; without those that a partial one has."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(_plain(function), include_extras=True)
    except Exception as error:  # an annotation as text is any expression
        raise UsageError(f"tools: {name}: its signature cannot be read: {error}") from None
    wanted = [parameter for parameter in signature.parameters.values() if parameter.name not in bound]
    if wanted and wanted[0].name == "self" and "self" not in hints:
        raise UsageError(f"tools: {name}: wanted a method of an object, got that of a class, with self")
    for parameter in wanted:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tools: {name}: wanted parameters that have a name, got {parameter}")
    return [(parameter, hints.get(parameter.name, parameter.empty)) for parameter in wanted]


def _default(value: Any, place: str) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise UsageError(f"tools: {place}: wanted a default that JSON can hold, got {value!r:.80}") from None


def _docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The description, and of each argument its own: in Google's form or after `:param NAME:`.

    names: of the arguments; a line of another is a part of the text before it.
    """
    description: list[str] = []
    descriptions: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        begun = _SECTION.match(line)
        field = _FIELD.match(line)
        if begun:
            section = begun[1]
        elif field:
            descriptions[field[1]] = field[2].strip()
            section = "Parameter"
        elif section.startswith(("Arg", "Param")):
            argument = _ARGUMENT.match(line)
            if line.lstrip().startswith(":"):  # :returns: and the like
                section = "field"
            elif argument and argument[1] in names:
                descriptions[argument[1]] = argument[2].strip()
            elif line.strip() and descriptions:  # it goes on
                last = next(reversed(descriptions))
                descriptions[last] += " " + line.strip()
        elif not section and not line.lstrip().startswith(":"):
            description.append(line)
    return "\n".join(description).strip(), descriptions


def _given(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the function's types: dataclasses and enums of what JSON has for them."""
    known = {parameter.name: kind for parameter, kind in _parameters(function, _plain(function).__name__)}
    strange = [name for name in arguments if name not in known]
    if strange:
        raise TypeError(f"there is no argument {strange[0]}; there are {', '.join(known) or 'none'}")
    return {name: typed_value(value, known[name]) for name, value in arguments.items()}


def _as_json(result: Any) -> str:
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    if states_schema(type(result)):
        result = result.model_dump(mode="json")
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(result)


def typed_value(value: Any, kind: Any) -> Any:
    """What JSON has for a value of the type, as the type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if origin is typing.Literal:
        return next((part for part in parts if isinstance(part, enum.Enum) and part.value == value), value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = typing.get_type_hints(kind)
        return kind(**{name: typed_value(item, hints.get(name)) for name, item in value.items()})
    if states_schema(kind):
        return kind.model_validate(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is typing.Annotated:
        return typed_value(value, parts[0])
    if origin in (typing.Union, types.UnionType):
        of_value = [part for part in parts if part is not type(None)]
        return value if value is None or len(of_value) != 1 else typed_value(value, of_value[0])
    if origin in (list, set, frozenset) and isinstance(value, list):
        return origin(typed_value(item, parts[0]) for item in value)
    if origin is Sequence and isinstance(value, list):
        return [typed_value(item, parts[0]) for item in value]
    if origin is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return tuple(typed_value(item, each) for item, each in zip(value, kinds, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {name: typed_value(item, parts[1]) for name, item in value.items()}
    return value
