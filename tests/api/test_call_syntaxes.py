"""What a format writes, its grammar takes at every cut and its reader reads back: every schema and value."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from graphml.api.chat_prompt import ChatPrompt, chat_prompt
from graphml.api.tokens import Token
from graphml.errors import UsageError
from graphml.sampling.structured.params_structure import matcher_of
from graphml.text.answers import Answer, ContentDelta, formats
from graphml.text.answers.call_syntax import JSON
from graphml.text.answers.formats.gemma import QuotedArguments
from graphml.text.answers.formats.minimax_m3 import MARK, ElementArguments
from graphml.text.answers.parameter_calls import ParameterArguments
from graphml.text.chat_template import ChatTemplate
from graphml.text.tokenizer import Tokenizer
from graphml.text.tokenizer.pieces import BYTE_LETTERS
from graphml.text.tokenizer.tokenizer_loading import load_tokenizer
from tests.text import vocabularies

NAMES = sorted(name for name, format in formats().items() if format.syntax is not None)
TEMPLATES = {"default": ChatTemplate("{{ tools }}{{ messages[0].content }}")}
MARKS = (
    "</parameter>", "\n</parameter>\n", "<tool_call>", "</tool_call>", "</function>", "<|tool_call|>", "{",
    "}", '"', "\\", "\n", "'", "</arg_value>", "null", "True", "3", "é", "\U0001f600", ", ", ")",
    "[TOOL_CALLS]", "<arg_key>", "; ", "```", "<parameter=", "\t", "\u2028",
)  # fmt: skip
TEXTS = st.lists(
    st.one_of(st.sampled_from(MARKS), st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)),
    max_size=5,
).map("".join)
TOOL_NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,15}", fullmatch=True)
TEXT = {"type": "string"}
KEYS = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.from_regex(r"[A-Za-z_$@#\[\]{:,=(\"][A-Za-z0-9 :,{}\[\]\"=()$@#./\u00e9-]{0,6}", fullmatch=True),
)
"""Names as people write them, `Due Date` and `page[size]`, and some with what formats write behind names."""
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: round(number, 4))


def plain() -> st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]]:
    """Schemas of values that hold no other ones, and values of them."""
    return st.one_of(
        st.just(({"type": "string"}, TEXTS)),
        st.just(({"type": "integer"}, st.integers(-(10**9), 10**9))),
        st.just(({"type": "number"}, NUMBERS)),
        st.just(({"type": "boolean"}, st.booleans())),
        st.just(({"type": ["string", "null"]}, st.one_of(TEXTS, st.none()))),
        st.just(({"anyOf": [{"type": "string"}, {"type": "integer"}]}, st.one_of(TEXTS, st.integers(0, 99)))),
        st.just(({"enum": ["a b", "null", "3", "c"]}, st.sampled_from(["a b", "null", "3", "c"]))),
        st.just(({"enum": ["x", None, 3, True]}, st.sampled_from(["x", None, 3, True]))),
        st.just(({"$ref": "#/$defs/Unit"}, st.sampled_from(["C", "F"]))),
        st.just(({"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}, st.sampled_from(["C", "F", None]))),
        st.just(({"allOf": [{"$ref": "#/$defs/Unit"}]}, st.sampled_from(["C", "F"]))),
        st.just(({"const": "only"}, st.just("only"))),
        st.just(({}, st.one_of(TEXTS, st.integers(0, 9), st.booleans(), st.none()))),
    )


def objects(member: Any) -> Any:
    """Schemas of objects with these members, and values of them."""

    @st.composite
    def described(draw: Any) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
        names = draw(st.lists(KEYS, max_size=4, unique=True))
        parts = {name: draw(member) for name in names}
        needed = [name for name in names if draw(st.booleans())]
        schema = {
            "type": "object",
            "properties": {name: part[0] for name, part in parts.items()},
            "required": needed,
        }

        @st.composite
        def value(draw: Any) -> dict[str, Any]:
            chosen = [name for name in names if name in needed or draw(st.booleans())]
            return {name: draw(parts[name][1]) for name in draw(st.permutations(chosen))}

        return schema, value()

    return described()


def arrays(member: Any) -> Any:
    return member.map(lambda part: ({"type": "array", "items": part[0]}, st.lists(part[1], max_size=3)))


MEMBERS = st.recursive(plain(), lambda inner: st.one_of(arrays(inner), objects(inner)), max_leaves=6)
TOOLS = st.lists(
    st.tuples(TOOL_NAMES, objects(MEMBERS)), min_size=1, max_size=3, unique_by=lambda tool: tool[0]
)


def marks_of(name: str) -> list[str]:
    """The texts that a format's family has as tokens of their own."""
    format = formats()[name]
    return sorted(
        {text for text in (*format.calls, *format.shown) if text.strip() == text and " " not in text}
    )


@functools.cache
def tokenizer(name: str = "") -> Tokenizer:
    """A token for each byte; name: and control tokens for the marks of this format."""
    controls = [*marks_of(name), "<|return|>", "<|call|>"] if name else []
    tokens = [*BYTE_LETTERS, "<end>", "th", *controls]
    types = [vocabularies.NORMAL] * len(BYTE_LETTERS) + [vocabularies.CONTROL, vocabularies.NORMAL]
    types += [vocabularies.CONTROL] * len(controls)
    values = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": types,
        "merges": ["t h"],
        "eos_token_id": 256,
        "pre": "qwen2",
    }
    return load_tokenizer(vocabularies.metadata(values))


def in_order(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """Members of objects within JSON in the order of their schema, the only one that JSON's grammar takes."""
    if isinstance(value, list):
        return [in_order(element, schema.get("items", {}), root) for element in value]
    if isinstance(value, dict):
        listed = schema.get("properties", {})
        return {name: in_order(value[name], listed[name], root) for name in listed if name in value}
    return value


def representable(name: str, value: Any) -> bool:
    """Whether the format can write a value: not a text that spells what ends texts."""
    arguments = formats()[name].syntax.arguments  # type: ignore[union-attr]
    texts = json.dumps(value, ensure_ascii=False)
    if isinstance(arguments, QuotedArguments):
        return arguments.quote not in texts
    if isinstance(arguments, ElementArguments):
        return MARK not in texts and "null" not in json.dumps(value) and all(strings(value))
    if isinstance(arguments, ParameterArguments):
        return not any(
            arguments.value_close in text
            and (arguments.key_open in text or arguments.end[:2] in text.replace(arguments.value_close, ""))
            for text in map(str, strings(value))
        )
    return True


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


def asked(name: str, tools: list[Any], vocabulary: str, choice: str) -> ChatPrompt:
    described = [
        {
            "type": "function",
            "function": {"name": tool, "parameters": {**schema, "$defs": {"Unit": {"enum": ["C", "F"]}}}},
        }
        for tool, (schema, _) in tools
    ]
    messages = [{"role": "user", "content": "x"}]
    return chat_prompt(
        tokenizer(vocabulary), TEMPLATES, messages, tools=described, tool_choice=choice, chat_format=name,
        parallel_tool_calls=True,
    )  # fmt: skip


def read(prompt: ChatPrompt, text: str) -> Answer:
    reader = prompt.reader()
    for id in prompt.tokenizer.encode(text, add_special=False, parse_special=True):
        reader.push(Token(id, prompt.tokenizer.piece(id)))
    reader.finish("end")
    return reader.answer


def check(name: str, vocabulary: str, choice: str, data: Any) -> None:
    tools = data.draw(TOOLS)
    syntax = formats()[name].syntax
    assert syntax is not None
    as_json = (
        not isinstance(syntax.arguments, ParameterArguments | QuotedArguments | ElementArguments)
        and name != "lfm2"
    )
    calls = []
    for _ in range(data.draw(st.integers(1, 3))):
        tool, (schema, values) = data.draw(st.sampled_from(tools))
        value = data.draw(values)
        if as_json:
            value = in_order(value, schema, schema)
        elif not isinstance(syntax.arguments, QuotedArguments | ElementArguments):
            value = {key: in_order(part, schema["properties"][key], schema) for key, part in value.items()}
        calls.append((tool, value))
    assume(all(representable(name, value) for _, value in calls))
    controls = marks_of(vocabulary) if vocabulary else []
    assume(not any(control in text for control in controls for _, value in calls for text in strings(value)))
    schemas = {tool: schema | {"$defs": {"Unit": {"enum": ["C", "F"]}}} for tool, (schema, _) in tools}
    text = syntax.written(calls, schemas)
    prompt = asked(name, tools, vocabulary, choice)
    matcher = matcher_of(prompt.params, prompt.tokenizer)
    assert matcher is not None
    ids = prompt.tokenizer.encode(text, add_special=False, parse_special=True)
    for place, id in enumerate(ids):
        assert matcher.allows(id), (text, prompt.tokenizer.decode(ids[:place]))
        matcher.accept(id)
    assert matcher.may_end(), text
    answer = read(prompt, text)
    assert [(call.name, call.values()) for call in answer.tool_calls] == calls, text
    assert (answer.content, answer.cut) == ("", []), text


FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
def test_calls_are_forced_and_read_as_they_are_written(name: str, data: Any) -> None:
    check(name, "", "required", data)


NOT_TAKEN = {
    "": [name for name in NAMES if formats()[name].syntax.arguments is not JSON],  # type: ignore[union-attr]
    " a": ["functiongemma", "gemma4", "lfm2"],
    "}a": ["functiongemma", "gemma4"],
    ")a": ["lfm2"],
    "ok:1,b": ["functiongemma", "gemma4"],
    'ok="x': ["lfm2"],
    'ok" type="x': ["deepseek-v3.2", "deepseek-v4", "kimi-k3"],
    "a>b": ["minimax-m3"],
    "/a": ["minimax-m3"],
}
"""Names that formats cannot write so that they are read again, beside the name `ok`."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", [*NOT_TAKEN, "Due Date", 'a"b', "x:y", "a=b", "items[]", "a,b{"])
@pytest.mark.parametrize("place", ["root", "nested"])
def test_names_that_cannot_be_read_are_not_forced_and_told(name: str, key: str, place: str) -> None:
    object_: dict[str, Any] = {"type": "object", "properties": {"ok": TEXT, key: TEXT}}
    value, where, wanted = {"ok": "x", key: "y"}, "#", {"required": [key]}
    arguments = formats()[name].syntax.arguments  # type: ignore[union-attr]
    taken = name not in NOT_TAKEN.get(key, [])
    schemas = [object_, object_ | wanted]
    if place == "nested":
        taken = taken or not arguments.nested
        schemas = [{"type": "object", "properties": {"o": {"anyOf": [part]}}} for part in schemas]
        value, where = {"o": value}, "#/properties/o/anyOf/0"
    prompt = asked(name, [("f", (schemas[0], None))], "", "required")
    if not taken:
        assert prompt.unforced == [f"f:{where}/properties/{key}"]
        with pytest.raises(UsageError, match="cannot hold this name"):
            asked(name, [("f", (schemas[1], None))], "", "required")
        assert asked(name, [("f", (schemas[1], None))], "", "auto").unforced == prompt.unforced
        return
    assert prompt.unforced == []
    syntax = formats()[name].syntax
    assert syntax is not None
    (call,) = read(prompt, syntax.written([("f", value)], {"f": schemas[0]})).tool_calls
    assert call.values() == value


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
def test_calls_that_need_not_come_follow_the_same_grammar(name: str, data: Any) -> None:
    check(name, "", "auto", data)


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
def test_marks_that_are_control_tokens_change_nothing(name: str, data: Any) -> None:
    check(name, name, "required", data)


def walked(prompt: ChatPrompt, pieces: list[str], random: Random) -> str | None:
    """A text that the grammar allows: what of random pieces it takes; None where it took too long to end."""
    matcher = matcher_of(prompt.params, prompt.tokenizer)
    assert matcher is not None
    ids: list[int] = []
    for _ in range(300):
        if matcher.may_end() and random.random() < 0.7:
            return prompt.tokenizer.decode(ids, skip_special=False)
        taken = 0
        for id in prompt.tokenizer.encode(random.choice(pieces), add_special=False, parse_special=True):
            if not matcher.allows(id):
                break
            matcher.accept(id)
            ids.append(id)
            taken += 1
        if not taken:
            allowed = np.flatnonzero(matcher.allowed(np.arange(prompt.tokenizer.n_vocab)))
            assert len(allowed), prompt.tokenizer.decode(ids)
            id = int(random.choice([id for id in allowed if id < 256] or list(allowed)))
            if id in prompt.tokenizer.end_tokens:
                return prompt.tokenizer.decode(ids, skip_special=False)
            matcher.accept(id)
            ids.append(id)
    return None


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(tools=TOOLS, random=st.randoms(use_true_random=False))
def test_whatever_the_grammar_allows_is_read_as_whole_calls(name: str, tools: Any, random: Random) -> None:
    syntax = formats()[name].syntax
    assert syntax is not None
    prompt = asked(name, tools, "", "required")
    names = [key for _, (schema, _) in tools for key in schema["properties"]]
    marks = [mark for mark in re.split(r"([<>\n])", syntax.form("NAME")) if mark]
    pieces = [
        *marks,
        *names,
        syntax.arguments.form(),
        *MARKS,
        syntax.after,
        syntax.end or "}",
        '"}',
        '"',
        "]",
    ]
    arguments = syntax.arguments
    if isinstance(arguments, ParameterArguments):
        line = "\n" if arguments.lines else ""
        closes = [f"{line}{arguments.value_close}\n{follower}" for follower in arguments.opens]
        pieces += closes * 8 + [arguments.value_close, f"{arguments.value_close}\n", arguments.end] * 2
    if isinstance(arguments, QuotedArguments):
        pieces += [arguments.quote] * 20
    text = walked(prompt, [piece for piece in pieces if piece], random)
    assume(text is not None)
    answer = read(prompt, str(text))
    assert answer.tool_calls, text
    assert (answer.content, answer.cut) == ("", []), text
    schemas = {tool: schema | {"$defs": {"Unit": {"enum": ["C", "F"]}}} for tool, (schema, _) in tools}
    for call in answer.tool_calls:
        jsonschema.validate(call.values(), schemas[call.name])


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
def test_an_answer_of_calls_that_is_cut_anywhere_has_no_markup_in_its_text(name: str, data: Any) -> None:
    tools = data.draw(TOOLS)
    chosen = data.draw(st.lists(st.sampled_from(tools), min_size=2, max_size=3))
    calls = [(tool, data.draw(values)) for tool, (_, values) in chosen]
    controls = marks_of(name)
    assume(all(representable(name, value) for _, value in calls))
    assume(not any(control in text for control in controls for _, value in calls for text in strings(value)))
    syntax = formats()[name].syntax
    assert syntax is not None
    prompt = asked(name, tools, name, "auto")
    text = syntax.written(calls, {tool: schema for tool, (schema, _) in tools})
    ids = prompt.tokenizer.encode(text, add_special=False, parse_special=True)
    for place in range(1, len(ids)):
        cut = prompt.tokenizer.decode(ids[:place])
        if cut.endswith("\ufffd") or (formats()[name].bare and syntax.begin.startswith(cut)):
            continue
        if formats()[name].bare and any(form.startswith(cut) for form in (syntax.opening, syntax.lead)):
            continue  # not a call yet: it may be a text
        reader, streamed = prompt.reader(), []
        for id in ids[:place]:
            streamed += reader.push(Token(id, prompt.tokenizer.piece(id)))
        streamed += reader.finish("length")
        assert reader.answer.content == "", (cut, text)
        assert not any(isinstance(event, ContentDelta) for event in streamed), cut
