"""The grammar of an answer's tool calls: which must come, or follow their tools once they begin.

Beside a schema of the answer (`json_schema`) an answer is a call or what the schema says. Knows formats,
tools and sampling parameters; nothing of messages or templates.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
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
from graphml.sampling.structured.params_structure import LARK, matcher_of
from graphml.sampling.structured.schema_structure import schema_of_part
from graphml.text.answers import AnswerFormat, ReasoningMarks
from graphml.text.answers.forced_calls import call_trigger, forced_calls, lark_spelling
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
            response = _prepared("json_schema", params.json_schema, not params.open_objects)
        spell = _speller(self.tokenizer)
        return forced_calls(self.format, schemas, spell, self.several, self.marks, self.inside, response)

    def _with_free_text(self, params: SamplingParams) -> SamplingParams:
        """Free text, in which a call follows the grammar from its begin on."""
        grammar = forced_calls(self.format, self._schemas(params), _speller(self.tokenizer), self.several)
        lazy = dataclasses.replace(
            params, grammar=_lark(grammar), grammar_lazy=True, grammar_triggers=self._triggers()
        )
        try:
            matcher_of(lazy, self.tokenizer)
        except UsageError:  # too large: calls stay free, as they need not come
            return params
        return lazy

    def _schema(self, tool: Tool, params: SamplingParams) -> Mapping[str, Any]:
        stated = dict(tool.parameters)
        if not stated.keys() - ANNOTATIONS - {"type"} and self.forced:
            stated |= {"properties": {}, "additionalProperties": False}  # nothing to run on with
        try:
            part = _prepared(f"tools: {tool.name}", json.dumps(stated), not params.open_objects)
        except UsageError:
            if self.forced:
                raise
            part = ANY_OBJECT
        syntax = self.format.syntax
        if syntax is not None and syntax.parameters is not None:
            return schema_of_members(part)
        return part if isinstance(part, Mapping) else {}

    def _triggers(self) -> tuple[Trigger, ...]:
        """The pattern with which a call begins, and the control tokens of which it tells."""
        format, marks, tokenizer = self.format, self.marks, self.tokenizer
        assert format.syntax is not None
        texts = [*format.calls, format.syntax.begin, format.syntax.before, *format.shown]
        texts += [] if marks is None else [marks.open, marks.close]
        controls = {control for text in texts for control in tokenizer.spelled_controls(text)}
        spelled = [
            (control, tokenizer.encode(control, add_special=False, parse_special=True)[0])
            for control in controls
        ]
        known = [Trigger(SPELLED, text, id) for text, id in sorted(spelled)]
        return Trigger(MARKER, call_trigger(format, marks, self.inside)), *known


def _following(params: SamplingParams, grammar: str) -> SamplingParams:
    return dataclasses.replace(params, grammar=_lark(grammar), json_schema="")


def _lark(grammar: str) -> str:
    return f"{LARK} {{}}\n{grammar}"


def _prepared(name: str, text: str, closed: bool) -> Any:
    """The schema as a part of a grammar; UsageError, beginning with the name, where it is not supported."""
    part = (_kept if len(text) <= KEPT_CHARS else _part_or_error)(name, text, closed)
    if isinstance(part, str):
        raise UsageError(f"{name}: {part}")
    return part


def _part_or_error(name: str, text: str, closed: bool) -> Any:
    try:
        return within_seconds(name, lambda: schema_of_part(text, closed))
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
