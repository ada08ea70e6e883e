"""Grammars that force tool calls in a format: Lark of llguidance, with each tool's schema for its arguments.

Each schema is a JSON value of its own there, so that its references lead to its own definitions. Knows
formats; its caller prepares the schemas, and says what is a token of its own in a vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks
from graphml.text.answers.call_sink import Schemas
from graphml.text.answers.grammar_rules import SPACE, GrammarRules, Schema, Spell, joined, json_terminal

_PARTS: Final = re.compile(r'"[^"]*"|[^"]+')


def forced_calls(
    format: AnswerFormat,
    tools: Schemas,
    spell: Spell,
    several: bool = True,
    marks: ReasoningMarks | None = None,
    inside: bool = False,
    response: Schema | None = None,
    begun: bool = False,
) -> str:
    """The grammar of an answer that is one call, or several, of these tools.

    begun: the answer began as free text, and may have begun a list: one call may stand in a list then, too.
    marks, inside: reasoning may come before, or is what the answer begins within. response: the schema of an
    answer without calls, None where there must be one. The format has a syntax.
    """
    syntax = format.syntax
    assert syntax is not None
    rules = GrammarRules(spell if response is None else partial(_as_json, spell))
    calls = [syntax.grammar(rules, name, schema) for name, schema in tools.items()]
    rules.add("call", " | ".join(calls))
    count = ("+" if syntax.alone else "*") if several else ""
    more = f" ({joined(spell(syntax.between), 'call')}){count}" if count else ""
    before = _reasoning(format, rules, marks, inside)
    answer = joined(spell(syntax.begin), "call" + more, spell(syntax.end))
    if syntax.alone:
        answer = f"(call | {answer})" if count or begun else "call"
    if response is not None:
        text = rules.add("response", joined(spell(format.text_open), json_terminal(response)))
        answer = f"({answer} | {text})"
    return rules.text(joined(before, answer))


def forced_response(
    format: AnswerFormat, spell: Spell, marks: ReasoningMarks | None, inside: bool, response: Schema
) -> str:
    """The grammar of an answer that follows a schema; marks, inside: reasoning, as of `forced_calls`."""
    rules = GrammarRules(spell)
    before = _reasoning(format, rules, marks, inside)
    return rules.text(joined(before, spell(format.text_open), json_terminal(response)))


def _as_json(spell: Spell, text: str) -> str:
    """A text in the parts that JSON has: llguidance tells a call from other JSON by these alone."""
    return joined(*map(spell, _PARTS.findall(text))) if text.startswith("{") else spell(text)


def call_trigger(
    format: AnswerFormat,
    names: Iterable[str],
    marks: ReasoningMarks | None = None,
    inside: bool = False,
) -> str:
    """A regular expression whose group is where calls begin in an answer; of reasoning it finds nothing.

    names: of the tools. marks, inside: reasoning may come before, or is what the answer begins within. The
    format has a syntax.
    """
    syntax = format.syntax
    assert syntax is not None
    if format.trigger:
        return format.trigger.replace("NAMES", "|".join(map(re.escape, names)))
    opening = syntax.lead if syntax.alone else syntax.opening
    marker = max((marker for marker in format.calls if opening.startswith(marker)), key=len, default="")
    bare = not marker and format.bare is not None  # without a marker it is a call at the begin alone
    text = r"\s*" if bare else "(?s:.*?)"
    begin = f"(?:{re.escape(syntax.begin)})?" if syntax.alone else ""
    word = f"({begin}{re.escape(marker or opening)})"
    if marks is None:
        return rf"\A{text}{word}"
    opened, closed = rf"\s*{re.escape(marks.open)}", f"(?>(?s:.*?){re.escape(marks.close)})"
    if inside:
        return rf"\A{closed}{text}{word}"
    return rf"\A(?:{opened}{closed}|(?!{opened})){text}{word}"


def _reasoning(format: AnswerFormat, rules: GrammarRules, marks: ReasoningMarks | None, inside: bool) -> str:
    if format.whole is not None and format.reasoning is not None:
        end, opened = rules.until(format.reasoning.close), rules.spell(format.reasoning.open)
        return f"({opened} {end} {rules.spell(format.resumes)})?"
    if marks is None:
        return ""
    end = f"{rules.until(marks.close)} {rules.new('space', SPACE)}"
    return end if inside else f"({rules.spell(marks.open)} {end})?"
