"""What tool calls follow: each tool's own schema, closed; and how many there may be."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

import graphml
from graphml import SamplingParams
from graphml.api import call_grammar
from graphml.api.chat_prompt import ChatPrompt, chat_prompt
from graphml.sampling.structured.params_structure import matcher_of
from graphml.text.answers import formats
from graphml.text.answers.schema_types import json_types, leaves
from graphml.text.chat_template import ChatTemplate
from tests import tiny_model

MESSAGES = [{"role": "user", "content": "x"}]
UNIT = {"$defs": {"Unit": {"enum": ["C", "F"]}}, "properties": {"unit": {"$ref": "#/$defs/Unit"}}}
HERMES, CODER = "hermes", "qwen3-coder"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(
        tmp_path_factory.mktemp("tiny") / "tiny.gguf",
        template="{{ tools }}{{ messages[0].content }}",
        n_ctx=4000,
    )
    with graphml.load(path, backend="reference", kv="f32") as opened:
        yield opened


def tool(parameters: dict[str, Any], name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def asked(model: graphml.Model, *tools: dict[str, Any], **how: Any) -> ChatPrompt:
    given = {"tool_choice": "auto", "chat_format": "generic", **how}
    return chat_prompt(model.tokenizer, model.templates, MESSAGES, tools=list(tools), **given)


def takes(model: graphml.Model, prompt: ChatPrompt, text: str) -> bool:
    matcher = matcher_of(prompt.params, model.tokenizer)
    assert matcher is not None
    return matcher.accepts(text)


def read(model: graphml.Model, prompt: ChatPrompt, text: str) -> Any:
    reader = prompt.reader()
    for id in model.encode(text, False, True):
        reader.push(graphml.Token(id, model.piece(id)))
    reader.finish()
    return reader.answer


def call(arguments: Any, name: str = "f") -> str:
    return json.dumps({"name": name, "arguments": arguments})


def generic(*calls: str) -> str:
    return f"[{', '.join(calls)}]" if len(calls) > 1 else calls[0]


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in calls)


SCHEMAS: list[tuple[dict[str, Any], Any, Any]] = [  # parameters, right arguments, wrong ones
    (UNIT, {"unit": "F"}, {"unit": "K"}),
    ({**UNIT, "properties": {"unit": {"$ref": "/$defs/Unit"}}}, {"unit": "F"}, {"unit": "K"}),
    ({"properties": {"p": {"type": "string", "format": "path"}}}, {"p": "/"}, {"p": 1}),
    ({"properties": {"m": {"dependentRequired": {"a": ["b"]}}}}, {"m": {"b": 1}}, {"m": {"a": 1}}),
    (
        {"properties": {"x": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}},
        {"x": {"a": 1}},
        {"x": {}},
    ),
    ({"$ref": "#/definitions/A", "definitions": {"A": {"properties": {"x": {}}}}}, {"x": 1}, {"y": 1}),
    ({"properties": {"x": {"properties": {"y": {}}}}}, {"x": {"y": 1}}, {"x": {"z": 1}}),
    ({"additionalProperties": {"type": "integer"}}, {"x": 1}, {"x": "1"}),
    ({"properties": {"x": {}, "y": {}}, "x-guidance": {"item_separator": "; "}}, {"x": 1, "y": 1}, {"z": 1}),
]  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("parameters", "right", "wrong"), SCHEMAS, ids=[json.dumps(one[0])[:40] for one in SCHEMAS]
)
def test_each_tool_has_its_own_schema(
    model: graphml.Model, choice: str, parameters: dict[str, Any], right: Any, wrong: Any
) -> None:
    for format, written in (("generic", generic), (HERMES, hermes)):
        prompt = asked(
            model, tool(UNIT, "g"), tool(parameters), tool_choice=choice, chat_format=format,
            parallel_tool_calls=True,
        )  # fmt: skip
        assert takes(model, prompt, written(call(right)))
        assert takes(model, prompt, written(call({"unit": "C"}, "g"), call(right)))
        assert not takes(model, prompt, written(call(wrong)))
        (found,) = read(model, prompt, written(call(right))).tool_calls
        assert found.values() == right


UNFORCED: list[tuple[dict[str, Any], str, Any, Any]] = [  # a schema, what is not forced, right and wrong
    ({"type": "array", "uniqueItems": True}, "uniqueItems", [1, 1], 3),
    ({"type": "string", "not": {"const": "a"}}, "not", "a", 3),
    ({"if": {"type": "string"}, "then": {"minLength": 1}, "type": "string"}, "if", "", 3),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern", "c", 3),
    ({"type": "object", "patternProperties": {"(?=a)": {}}}, "patternProperties/(?=a)", {}, 1),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 0}]}, "oneOf", 1, "a"),
]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(("schema", "word", "right", "wrong"), UNFORCED, ids=[one[1] for one in UNFORCED])
def test_what_cannot_be_forced_is_left_out_and_told(
    model: graphml.Model, choice: str, schema: dict[str, Any], word: str, right: Any, wrong: Any
) -> None:
    odd = tool({"properties": {"x": schema, "unit": {"enum": ["C"]}}, "required": ["x"]}, "odd")
    for format, written in (("generic", generic), (HERMES, hermes)):
        prompt = asked(model, odd, tool(UNIT), chat_format=format, tool_choice=choice)
        assert takes(model, prompt, written(call({"x": right, "unit": "C"}, "odd")))
        for broken in ({"x": wrong}, {"unit": "C"}, {"x": right, "unit": "K"}):
            assert not takes(model, prompt, written(call(broken, "odd")))
        assert not takes(model, prompt, written(call({"unit": "K"})))
        assert prompt.unforced[0] == f"odd:#/properties/x/{word}"
        assert asked(model, tool(UNIT), chat_format=format, tool_choice=choice).unforced == []


def test_a_named_tool_is_called_once(model: graphml.Model) -> None:
    one, other = call({}), call({}, "g")
    tools = tool({}), tool({}, "g")
    named: Any = {"type": "function", "function": {"name": "f"}}
    for choice in ("f", named):
        prompt = asked(model, *tools, tool_choice=choice, chat_format=HERMES)
        assert takes(model, prompt, hermes(one))
        assert not takes(model, prompt, hermes(one, one))
        assert not takes(model, prompt, hermes(other))
        prompt = asked(model, *tools, tool_choice=choice)
        assert takes(model, prompt, one)
        assert not takes(model, prompt, generic(one, one))
    for choice in ("required", "auto"):
        several: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": True}
        assert takes(model, asked(model, *tools, **several, chat_format=HERMES), hermes(one, other))
        assert takes(model, asked(model, *tools, **several), generic(one, other))
        # The template shows no calls: a required one comes alone, unless several are asked for.
        prompt = asked(model, *tools, tool_choice=choice)
        assert takes(model, prompt, generic(one, other)) == (choice == "auto")
        prompt = asked(model, *tools, tool_choice=choice, parallel_tool_calls=False)
        assert takes(model, prompt, one)
        assert not takes(model, prompt, generic(one, other))
        single = asked(model, *tools, tool_choice=choice, parallel_tool_calls=False, chat_format=HERMES)
        assert takes(model, single, hermes(other))
        assert not takes(model, single, hermes(one, other))


def test_objects_of_arguments_are_open_where_that_is_asked_for(model: graphml.Model) -> None:
    for open_objects in (False, True):
        prompt = asked(model, tool(UNIT), params=SamplingParams(open_objects=open_objects))
        assert takes(model, prompt, generic(call({"unit": "C", "more": 1}))) is open_objects
        assert not takes(model, prompt, generic(call({"unit": "K"})))


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize("format", ["generic", "llama3", HERMES, CODER])
def test_an_answer_is_a_call_or_follows_the_schema(model: graphml.Model, format: str) -> None:
    written = "<tool_call>\n<function=f>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>"
    one = call({"unit": "C"})
    written = {
        "generic": generic(one), "llama3": one.replace("arguments", "parameters"), HERMES: hermes(one)
    }.get(format, written)  # fmt: skip
    params = SamplingParams(json_schema=CITY)
    prompt = asked(model, tool(UNIT), chat_format=format, params=params)
    assert takes(model, prompt, written)
    (found,) = read(model, prompt, written).tool_calls
    assert found.values() == {"unit": "C"}
    answer = '{"city": "Rome \\"x\\""}'
    assert takes(model, prompt, answer)
    assert read(model, prompt, answer).content == answer
    assert not takes(model, prompt, answer.replace("city", "town"))
    assert not takes(model, prompt, "It is Rome.")
    forced = asked(model, tool(UNIT), chat_format=format, params=params, tool_choice="required")
    assert takes(model, forced, written)
    assert not takes(model, forced, answer)


def test_an_answer_by_a_schema_is_text_as_it_stands(model: graphml.Model) -> None:
    prompt = asked(model, tool(UNIT), params=SamplingParams(json_schema={"enum": ["a b", {"c": "d"}]}))
    for text in ('"a b"', '{"c": "d"}'):
        assert takes(model, prompt, text)
        assert read(model, prompt, text).content == text
    assert read(model, prompt, '{"c": ').content == '{"c": '


def test_another_structure_still_excludes_forced_calls(model: graphml.Model) -> None:
    for params in (SamplingParams(regex="yes"), SamplingParams(json_schema=CITY, grammar_after="</think>")):
        with pytest.raises(graphml.UsageError, match="calls are forced by a grammar here, and"):
            asked(model, tool(UNIT), params=params, tool_choice="required")
        assert asked(model, tool(UNIT), params=params, chat_format=HERMES).params == params
    wrong = SamplingParams(json_schema={"type": "array", "uniqueItems": True})
    assert asked(model, tool(UNIT), params=wrong, chat_format=HERMES).params == wrong  # refused as it is


WITH_X = {"properties": {"x": {"type": "string"}}, "required": ["x"]}
ROOTS: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"$ref": "#/definitions/A", "definitions": {"A": WITH_X}}, {"x": "a b"}, "x"),
    ({"allOf": [WITH_X]}, {"x": "a"}, "x"),
    ({"additionalProperties": {"type": "string"}}, {"any": "a"}, ""),
    ({"properties": {"x": {"$ref": "#/$defs/U"}}, "$defs": {"U": {"type": "string"}}}, {"x": "5"}, ""),
    (
        {"properties": {"x": {"$ref": "#/$defs/U"}}, "$defs": {"U": {"enum": ["C", "F"]}}, "required": ["x"]},
        {"x": "F"},
        "x",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "arguments", "needed"), ROOTS, ids=[json.dumps(one[0])[:40] for one in ROOTS]
)
def test_parameters_one_by_one_are_those_of_the_root(
    model: graphml.Model, parameters: dict[str, Any], arguments: dict[str, str], needed: str
) -> None:
    def written(values: dict[str, str]) -> str:
        lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function=f>\n{lines}</function>\n</tool_call>"

    for choice in ("required", "auto"):
        prompt = asked(model, tool(parameters), tool_choice=choice, chat_format=CODER)
        assert takes(model, prompt, written(arguments))
        assert takes(model, prompt, written({})) is not bool(needed)
        (found,) = read(model, prompt, written(arguments)).tool_calls
        assert found.values() == arguments


@pytest.mark.parametrize("parameters", [
    {"properties": None}, {"properties": {"x": None}}, {"allOf": [{"$ref": "#"}] * 40}, {"$ref": "#"},
    {"required": 3, "properties": {"x": {}}}, {"anyOf": 3}, {"allOf": [3], "$ref": 7},
])  # fmt: skip
def test_parameters_that_are_no_schema_or_endless_refuse_forced_calls_alone(
    model: graphml.Model, parameters: dict[str, Any]
) -> None:
    for format in ("generic", HERMES, CODER):
        prompt = asked(model, tool(parameters), chat_format=format)
        assert prompt.params.structured
        assert read(model, prompt, "x").content == "x"
        with contextlib.suppress(graphml.UsageError):
            asked(model, tool(parameters), chat_format=format, tool_choice="required")


JOKE = json.dumps({"type": "object", "properties": {"joke": {"type": "string"}}, "required": ["joke"]})
FINAL = "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("template", "format", "right", "wrong"),
    [
        ("<think>\n</think>{% if add_generation_prompt %}<think>\n{% endif %}", None,
         ['hm</think>\n\n{"joke": "a"}', '{no}</think>{"joke": "a"}'], ['{"joke": "a"}', "hm</think>\n\nno"]),
        ("<think></think>", None, ['{"joke": "a"}'], ['<think>hm</think>\n{"joke": "a"}']),  # it has reasoned
        ("{# <think></think> #}", None, ['<think>hm</think>\n{"joke": "a"}', '{"joke": "a"}'],
         ["hm", "<think>a</think>b"]),
        ("", None, ['{"joke": "a"}'], ['<think>hm</think>{"joke": "a"}']),
        ("", "harmony", [f"{ANALYSIS}{FINAL}{{\"joke\": \"a\"}}", FINAL + '{"joke": "a"}'],
         ['{"joke": "a"}', ANALYSIS + FINAL + "no"]),
    ],
)  # fmt: skip
def test_a_schema_counts_from_the_end_of_reasoning_on(
    model: graphml.Model, template: str, format: str | None, right: list[str], wrong: list[str]
) -> None:
    templates = {"default": ChatTemplate("{{ messages[0].content }}" + template)}
    params = SamplingParams(json_schema=JOKE)
    prompt = chat_prompt(model.tokenizer, templates, MESSAGES, params, chat_format=format)
    for text in right:
        assert takes(model, prompt, text), text
        answer = read(model, prompt, text)
        assert (answer.content, "hm" in text) == ('{"joke": "a"}', answer.reasoning == "hm"), text
    for text in wrong:
        assert not takes(model, prompt, text), text


def test_an_expression_counts_behind_the_reasoning_that_the_prompt_begins(model: graphml.Model) -> None:
    templates = {"default": ChatTemplate("{{ messages[0].content }}</think><think>")}
    prompt = chat_prompt(model.tokenizer, templates, MESSAGES, SamplingParams(regex="[0-9]+"))
    assert takes(model, prompt, "so 1 + 1</think>2")
    assert not takes(model, prompt, "so 1 + 1</think>two")
    assert not takes(model, prompt, "2")


NODE = {"type": "object", "properties": {side: {"$ref": "#/$defs/A"} for side in ("left", "right", "up")}}
SELF: dict[str, Any] = {"$ref": "#/$defs/A"}
CIRCULAR: dict[str, Any] = {
    "anyOf": {"anyOf": [SELF, {"type": "string"}]},
    "anyOf of many": {"anyOf": [SELF] * 30},
    "anyOf with null": {"anyOf": [SELF, {"type": "null"}]},
    "allOf": {"allOf": [SELF]},
    "allOf of many": {"allOf": [SELF] * 30},
    "itself": SELF,
    "array": {"type": "array", "items": SELF},
    "tree": NODE,
}


@pytest.mark.parametrize("name", sorted(CIRCULAR))
def test_schemas_that_lead_back_to_themselves_are_forced_as_far_as_they_say(
    model: graphml.Model, name: str
) -> None:
    described = tool({"properties": {"x": SELF}, "$defs": {"A": CIRCULAR[name]}})
    for format in sorted(name for name, format in formats().items() if format.syntax is not None):
        prompt = asked(model, described, chat_format=format)
        assert prompt.params.structured, format
        syntax = formats()[format].syntax
        assert syntax is not None
        text = syntax.written([("f", {})], {"f": described["function"]["parameters"]})
        assert takes(model, prompt, text), format
        (called,) = read(model, prompt, text).tool_calls
        assert called.values() == {}, format


@pytest.mark.parametrize("beside", ["words", "properties"])
def test_alternatives_that_copy_many_words_say_nothing_and_take_no_memory(beside: str) -> None:
    many = {f"x{index}": {} for index in range(5000)}
    branches: list[dict[str, Any]] = [{"type": "object", "properties": {"a": {}}}] * 200
    schema = {"anyOf": branches, **({"properties": many} if beside == "properties" else many)}
    tracemalloc.start()
    try:
        assert leaves(schema, {}) == [{}]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert leaves({**schema, "anyOf": branches[:2]}, {}) != [{}]
    nested = {"anyOf": [{"anyOf": [{"type": "string"}] * 200}] * 2}
    assert leaves(nested, {}) == [{}]


def test_a_schema_is_compiled_once_for_its_grammar_and_what_it_leaves_out(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def counted(name: str, work: Any) -> Any:
        compiled.append(name)
        return work()

    monkeypatch.setattr(call_grammar, "within_seconds", counted)
    monkeypatch.setattr(call_grammar, "KEPT_CHARS", 0)
    for choice in ("auto", "required"):
        prompt = asked(model, tool(UNIT, "g"), tool_choice=choice)
        assert prompt.unforced == []
    assert compiled == ["tools: g"] * 2


def test_a_schema_s_alternatives_are_those_of_its_references() -> None:
    base = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    root = {"$defs": {"Base": base, "Text": {"type": "string", "maxLength": 3}}}
    base_of = {"$ref": "#/$defs/Base"}
    sides = [{"allOf": [base_of, {"properties": {side: {}}, "required": [side]}]} for side in "bc"]
    for leaf, names in zip(leaves({"anyOf": sides}, root), (["a", "b"], ["a", "c"]), strict=True):
        assert sorted(leaf["properties"]) == sorted(leaf["required"]) == names
    texts = {"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}], "title": "T"}
    assert json_types(texts, root) == {"string", "null"}
    assert leaves(texts, root)[0] == {"type": "string", "maxLength": 3, "title": "T"}
    assert leaves({"anyOf": [True, False]}, root) == [{}]
    assert json_types({"anyOf": [True, {"type": "null"}]}, root) == set()
