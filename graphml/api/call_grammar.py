"""The grammar of an answer's tool calls: which must come, or follow their tools once they begin.

Beside a schema of the answer (`json_schema`) an answer is a call or what the schema says. Knows formats,
tools and sampling parameters; nothing of messages or templates.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from graphml.api.tools import Tool
from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.sampling.schemas.schema_members import schema_of_members
from graphml.sampling.schemas.schema_words import ANNOTATIONS
from graphml.sampling.schemas.time_limit import within_seconds
from graphml.sampling.settings.grammar_triggers import MARKER, SPELLED, Trigger
from graphml.sampling.settings.params import STRUCTURES
from graphml.sampling.settings.reasoning_end import ReasoningEnd
from graphml.sampling.structured.compile_turns import TURNS, current_asker
from graphml.sampling.structured.params_structure import LARK, matcher_of
from graphml.sampling.structured.schema_structure import forceable_part, schema_of_part
from graphml.sampling.structured.tried_structures import tried_part
from graphml.text.answers import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_syntax import JSON
from graphml.text.answers.forced_calls import call_trigger, forced_calls, forced_response
from graphml.text.answers.grammar_rules import lark_spelling
from graphml.text.answers.schema_types import with_names
from graphml.text.fenced_text import encode_fenced, fenced
from graphml.text.tokenizer import Tokenizer

ANY_OBJECT: Final = {"type": "object"}
KEPT, KEPT_CHARS = 256, 1 << 16
"""So many schemas are kept, each of at most so many characters."""


@dataclass(frozen=True)
class CallGrammar:
    """What the calls of an answer follow. tools: those that may be called. forced: whether one must be.

    several: whether more than one may be. marks, inside: of reasoning before them.
    """

    format: AnswerFormat
    tools: tuple[Tool, ...]
    forced: bool
    several: bool
    marks: ReasoningMarks | None
    inside: bool
    tokenizer: Tokenizer = field(repr=False)
    _parts: dict[Any, tuple[Mapping[str, Any], tuple[str, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def sampled(self, params: SamplingParams) -> SamplingParams:
        """The settings with which calls follow their tools; UsageError where another grammar is in the way.

        Calls that need not come follow theirs only where it can be compiled.
        """
        other = next((name for name in STRUCTURES if getattr(params, name)), None)
        late = params.grammar_lazy or bool(params.grammar_after)
        if other is not None and (other != "json_schema" or late):
            if not self.forced:
                return params
            raise UsageError(f"tools: calls are forced by a grammar here, and {other} wants another one")
        if self.forced:
            return _following(params, self._whole(params))
        if other is None:
            return self._with_free_text(params)
        try:
            return _following(params, self._whole(params))
        except UsageError:  # the schema alone tells what is wrong with it
            return params

    def _schemas(self, params: SamplingParams) -> dict[str, Mapping[str, Any]]:
        """The schema that each tool's arguments follow; UsageError for a forced one that is not supported."""
        return {tool.name: self._schema(tool, params) for tool in self.tools}

    def _whole(self, params: SamplingParams) -> str:
        """The grammar of the whole answer."""
        schemas = self._schemas(params)
        response = None
        if params.json_schema and not self.forced:
            response, _ = _prepared("json_schema", params.json_schema, not params.open_objects)
        spell = _speller(self.tokenizer)
        return forced_calls(self.format, schemas, spell, self.several, self.marks, self.inside, response)

    def _with_free_text(self, params: SamplingParams) -> SamplingParams:
        """Free text, in which a call follows the grammar from its begin on."""
        schemas, spell = self._schemas(params), _speller(self.tokenizer)
        grammar = forced_calls(self.format, schemas, spell, self.several, begun=True)
        lazy = dataclasses.replace(
            params, grammar=_lark(grammar), grammar_lazy=True, grammar_triggers=self._triggers()
        )
        try:
            matcher_of(lazy, self.tokenizer)
        except UsageError:  # too large: calls stay free, as they need not come
            return params
        return lazy

    def _schema(self, tool: Tool, params: SamplingParams) -> Mapping[str, Any]:
        return self._part(tool, params)[0]

    def unforced(self, params: SamplingParams) -> list[str]:
        """What of the tools' schemas no grammar forces: names with places; `#` where nothing is."""
        return [f"{tool.name}:{place}" for tool in self.tools for place in self._part(tool, params)[1]]

    def _part(self, tool: Tool, params: SamplingParams) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """A tool's schema as a part of a grammar, and the places that are left out of it; compiled once."""
        key = tool.name, params.open_objects
        if key not in self._parts:
            self._parts[key] = self._compiled_part(tool, params)
        return self._parts[key]

    def _compiled_part(self, tool: Tool, params: SamplingParams) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        part, places = self._prepared_part(tool, params)
        described = part if isinstance(part, Mapping) else {}
        arguments = JSON if self.format.syntax is None else self.format.syntax.arguments
        if arguments is JSON:
            return described, places
        schema, names = with_names(schema_of_members(described), arguments.takes, arguments.nested)
        if self.forced and any(names.values()):
            place = next(place for place, needed in names.items() if needed)
            raise UsageError(f"tools: {tool.name}, at {place}: calls of this model cannot hold this name")
        return schema, (*places, *names)

    def _prepared_part(self, tool: Tool, params: SamplingParams) -> tuple[Any, tuple[str, ...]]:
        stated = dict(tool.parameters)
        if not stated.keys() - ANNOTATIONS - {"type"} and self.forced:
            stated |= {"properties": {}, "additionalProperties": False}  # nothing to run on with
        try:
            return _prepared(f"tools: {tool.name}", json.dumps(stated), not params.open_objects, True)
        except UsageError:
            if self.forced:
                raise
            return ANY_OBJECT, ("#",)

    def _triggers(self) -> tuple[Trigger, ...]:
        """The pattern with which a call begins, and the control tokens of which it tells."""
        format, marks = self.format, self.marks
        assert format.syntax is not None
        texts = [*format.calls, format.syntax.begin, format.syntax.before, *format.shown]
        texts += [] if marks is None else [marks.open, marks.close]
        names = [tool.name for tool in self.tools]
        pattern = Trigger(MARKER, call_trigger(format, names, marks, self.inside))
        return pattern, *_spelled_controls(self.tokenizer, texts)


def behind_reasoning(
    params: SamplingParams,
    format: AnswerFormat,
    marks: ReasoningMarks | None,
    inside: bool,
    tokenizer: Tokenizer,
) -> SamplingParams:
    """The settings with which a structure counts from the end of the answer's reasoning on.

    A grammar is of all that the model writes, as in llama-server: it may say how reasoning ends.
    marks, inside: of the reasoning, within which the answer begins, or which may come.
    """
    structure = next((name for name in STRUCTURES if getattr(params, name)), None)
    if structure in (None, "grammar") or params.grammar_lazy or params.grammar_after:
        return params
    if marks is None and format.whole is None:
        return params
    if structure != "json_schema":
        if marks is None or not inside:
            return params
        controls = _spelled_controls(tokenizer, [marks.close])
        return dataclasses.replace(params, grammar_after=marks.close, grammar_triggers=controls)
    try:
        response, _ = _prepared("json_schema", params.json_schema, not params.open_objects)
    except UsageError:  # the schema alone tells what is wrong with it
        return params
    return _following(params, forced_response(format, _speller(tokenizer), marks, inside, response))


def ending_reasoning(
    params: SamplingParams,
    format: AnswerFormat,
    marks: ReasoningMarks | None,
    inside: bool,
    tokenizer: Tokenizer,
) -> SamplingParams:
    """The settings with how reasoning is ended, where they limit it; no limit where nothing marks it.

    marks, inside: as of `behind_reasoning`. UsageError for a message that spells a mark.
    """
    marks = marks or format.reasoning
    if params.reasoning_budget < 0:
        return params
    if marks is None:
        return dataclasses.replace(params, reasoning_budget=-1)
    message = params.reasoning_budget_message
    if marks.open in message or marks.close in message:
        wanted = f"wanted a text without {marks.open} and {marks.close}"
        raise UsageError(f"reasoning_budget_message: {wanted}; got {message!r:.80}")
    controls = _spelled_controls(tokenizer, [marks.open, marks.close, *format.frame])
    text = fenced(tokenizer, message) + marks.close
    end = ReasoningEnd(
        marks.open, marks.close, inside, tuple(encode_fenced(tokenizer, text, False)),
        tuple((control.token, control.value) for control in controls), format.frame, format.whole is not None,
    )  # fmt: skip
    return dataclasses.replace(params, reasoning_end=end)


def _spelled_controls(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Trigger, ...]:
    """The control tokens in these texts, which have no text of their own."""
    controls = {control for text in texts for control in tokenizer.spelled_controls(text)}
    ids = {
        control: tokenizer.encode(control, add_special=False, parse_special=True)[0] for control in controls
    }
    return tuple(Trigger(SPELLED, text, id) for text, id in sorted(ids.items()))


def _following(params: SamplingParams, grammar: str) -> SamplingParams:
    return dataclasses.replace(params, grammar=_lark(grammar), json_schema="")


def _lark(grammar: str) -> str:
    return f"{LARK} {{}}\n{grammar}"


def _prepared(name: str, text: str, closed: bool, partly: bool = False) -> tuple[Any, tuple[str, ...]]:
    """The schema as a part of a grammar, and the places of what it leaves out.

    partly: what cannot be forced is left out; else, and where that is no help, it is a UsageError, which
    begins with the name.
    """
    part = (_kept if len(text) <= KEPT_CHARS else _part_or_error)(name, text, closed, partly)
    if isinstance(part, str):
        raise UsageError(f"{name}: {part}")
    return part


def _part_or_error(name: str, text: str, closed: bool, partly: bool) -> tuple[Any, tuple[str, ...]] | str:
    def compiled() -> tuple[Any, tuple[str, ...]]:
        return forceable_part(text, closed) if partly else (schema_of_part(text, closed), ())

    try:
        if (asker := current_asker()) is None:
            return within_seconds(name, compiled)
        with TURNS.turn(asker, len(text)):
            return tried_part(text, closed, partly)
    except UsageError as error:
        return str(error).removeprefix("json_schema").lstrip(":, ")


_kept = lru_cache(maxsize=KEPT)(_part_or_error)


def _speller(tokenizer: Tokenizer) -> Callable[[str], str]:
    """From a text to terminals of a grammar, control tokens by their ids."""

    def spell(text: str) -> str:
        controls = sorted(tokenizer.spelled_controls(text), key=len, reverse=True)
        ids = [tokenizer.encode(control, add_special=False, parse_special=True)[0] for control in controls]
        return lark_spelling(text, list(zip(controls, ids, strict=True)))

    return spell
