"""What options of an answer hold or name: grammars, schemas, the template and its variables, a gap to fill.

And the values that its session captures, with the file that they are written to.

Knows files and the forms of these texts; nothing of what grammars and templates mean.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

import graphml
from graphml.cli.options.checks import check_target, text_of, text_or_file
from graphml.cli.options.options import Opening
from graphml.errors import TemplateError, UsageError
from graphml.sampling import SamplingParams

MAX_BYTES: Final = 1 << 22


def with_files(params: SamplingParams, grammar: Path | None, schema: Path | None) -> SamplingParams:
    """The parameters with what files hold, also those that are named in place of a text.

    UsageError for a file that cannot be read, and for a text beside one.
    """
    texts: dict[str, str] = {}
    for name, file in (("grammar", grammar), ("json_schema", schema), ("lark", None)):
        option, text = f"--{name.replace('_', '-')}", getattr(params, name)
        if file is not None and text:
            raise UsageError(f"{option}, {option}-file: wanted one of them; got both")
        if file is not None:
            texts[name] = text_of(file, MAX_BYTES)
        elif (read := text_or_file(option, text)) != text:
            texts[name] = read
    schema_text = texts.get("json_schema", params.json_schema)
    if isinstance(schema_text, str) and (short := schema_of_fields(schema_text)) is not None:
        texts["json_schema"] = short
    return dataclasses.replace(params, **texts) if texts else params  # type: ignore[arg-type]


_FIELD_TYPES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def schema_of_fields(text: str) -> str | None:
    """The JSON schema of an object whose fields a text lists, as `llm` has them; None for another text.

    Fields have commas or lines between them: a name, str (the default), int, float or bool, and ": " with
    what it is. UsageError for another type. One word alone is no list: it may be the name of a file.
    """
    lines = text.strip()
    if not lines or lines[0] in '{["' or not set(lines) & {",", "\n", " "}:
        return None
    properties: dict[str, dict[str, str]] = {}
    for line in filter(None, map(str.strip, lines.split("\n" if "\n" in lines else ","))):
        field, _, description = line.partition(":")
        name, *kinds = field.split() or [""]
        kind = _FIELD_TYPES.get(" ".join(kinds) or "str")
        if kind is None or not name or name in properties:
            raise UsageError(
                "--json-schema: wanted a JSON schema, or fields such as 'name, age int, bio', each once with "
                f"a type of {', '.join(_FIELD_TYPES)}; got {line!r:.80}"
            )
        properties[name] = {"type": kind} | (
            {"description": description.strip()} if description.strip() else {}
        )
    whole = {"type": "object", "properties": properties, "required": list(properties)}
    return json.dumps({**whole, "additionalProperties": False})


def template_variables(text: str | None) -> dict[str, Any] | None:
    """Return the variables of a JSON object; None for none, UsageError for other texts."""
    if text is None:
        return None
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        example = '{"enable_thinking": false}'
        raise UsageError(f"--chat-template-kwargs: wanted a JSON object such as {example}; got {text!r:.80}")
    return variables


def with_template(opening: Opening, template: str | None) -> Opening:
    """The options with the template that is given by name or as a text; UsageError for two of them."""
    if template is None:
        return opening
    if not template:
        raise UsageError("--chat-template: wanted a name or Jinja text, got an empty one")
    if opening.template is not None:
        raise UsageError("--chat-template, --template: wanted one of them; got both")
    return replace(opening, template=text_or_file("--chat-template", template))


def check_template(model: graphml.Model, template: str | None) -> None:
    """UsageError where the template of --chat-template is no Jinja, and none of the model's names."""
    if template is None:
        return
    try:
        _ = model.template  # is read when it is asked for
    except TemplateError as error:
        raise UsageError(f"--chat-template: {str(error).removeprefix('template: ')}") from None


@dataclass(frozen=True)
class Gap:
    """What is behind a gap that is filled, other files, and the order of the parts."""

    suffix: str
    files: tuple[tuple[str, str], ...]
    order: str


@dataclass(frozen=True)
class InfillOptions:
    """As they are given; `gap` checks them."""

    suffix: Annotated[
        str | None,
        typer.Option(
            help="Fill in the middle: generate the text between the prompt and this suffix.",
            show_default=False,
        ),
    ] = None
    infill_extra: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another file as context for --suffix; may be given again."),
    ] = None
    spm_infill: Annotated[
        bool,
        typer.Option("--spm-infill", help="Fill-in-the-middle prompts in the order suffix, prefix, middle."),
    ] = False

    def gap(self) -> Gap | None:
        """The gap; None where a text is continued."""
        extra = self.infill_extra or []
        if self.suffix is None:
            if extra or self.spm_infill:
                raise UsageError(
                    "--infill-extra, --spm-infill: wanted --suffix besides, the text behind the gap"
                )
            return None
        files = tuple((file.name, text_of(file, said="--infill-extra: ")) for file in extra)
        return Gap(self.suffix, files, "spm" if self.spm_infill else "psm")


@dataclass(frozen=True)
class CaptureOptions:
    """As they are given; `check` checks them."""

    capture: Annotated[
        list[str] | None,
        typer.Option(
            "--capture",
            metavar="PATTERN",
            help="Intermediate values to save in --captured, such as layers.*.attention; may be given again.",
        ),
    ] = None
    captured: Annotated[
        Path | None,
        typer.Option("--captured", metavar="FILE.npz", help="File for the values of --capture."),
    ] = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """What is captured; none where nothing is."""
        return tuple(self.capture or ())

    def check(self) -> None:
        """UsageError for patterns without a file, a file without patterns, or one that cannot be made."""
        if bool(self.capture) != (self.captured is not None):
            raise UsageError("--capture, --captured: wanted both, patterns of values and a file for them")
        check_target("--captured", self.captured, ".npz")

    def write(self, session: graphml.Session) -> None:
        """Write each value of each evaluation under EVALUATION.NAME; the first evaluation has number 0."""
        if self.captured is None:
            return
        arrays: dict[str, Any] = {
            f"{i}.{name}": array for i, values in enumerate(session.history) for name, array in values.items()
        }
        try:
            np.savez(self.captured, **arrays)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--captured {self.captured}: cannot be written: {reason}") from None
