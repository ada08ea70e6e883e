"""Templates of many families are rendered as transformers renders them, and their calls are read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphml.api.template_messages import fenced_messages, for_template
from graphml.errors import TemplateError
from graphml.text.answers import Answer, AnswerParser, format_of, marks_of
from graphml.text.chat_template import ChatTemplate
from tests.template_corpus import (
    CALLING,
    CONVERSATIONS,
    NOW,
    TOKENS,
    USER,
    WEATHER,
    corpus,
    rendered,
)  # fmt: skip

SOURCES, RENDERED = corpus(), rendered()
WRITE_NO_CALLS = (
    "Bielik", "Kimi-K2", "LFM2", "NousResearch", "deepseek-ai-DeepSeek-R1-Distill-Llama", "fireworks",
    "ibm-granite-granite-3.3",
)  # fmt: skip
"""Templates that leave an assistant's calls out, or fail on them."""


WRITE_CALLS = [
    name
    for name, source in sorted(SOURCES.items())
    if format_of(source).name != "plain" and not name.startswith(WRITE_NO_CALLS)
]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_template_renders_as_in_transformers(name: str) -> None:
    template = ChatTemplate(SOURCES[name], **TOKENS, now=lambda: NOW)
    for told, conversation in CONVERSATIONS.items():
        expected = RENDERED[name][told]
        if expected is None and ".append(" in SOURCES[name]:  # which graphml lets it do
            text = template.render(**conversation)
            assert text.count('<|tool_call_argument_begin|>{"city": "Köln", "days": 3}<|tool_call_end|>') == 1
            assert text.count("## Return of functions.weather:0\n") == (told == "result")
        elif expected is None:
            with pytest.raises(TemplateError):
                template.render(**conversation)
        else:
            assert template.render(**conversation) == expected, told


def test_the_corpus_is_large_and_of_many_families() -> None:
    assert len(SOURCES) >= 30
    assert {format_of(source).name for source in SOURCES.values()} >= {
        "deepseek", "deepseek-v3.1", "functionary", "gemma4", "glm", "granite", "harmony", "hermes", "kimi",
        "llama3", "mistral", "mistral-array", "nemotron", "phi4", "plain", "qwen3-coder", "seed",
    }  # fmt: skip
    refused = sum(one is None for told in RENDERED.values() for one in told.values())
    assert refused < 0.15 * len(SOURCES) * len(CONVERSATIONS)


@pytest.mark.parametrize("name", WRITE_CALLS)
def test_what_a_template_writes_of_a_call_is_read_back(name: str) -> None:
    source = SOURCES[name]
    format = format_of(source)
    template = ChatTemplate(source, **TOKENS, now=lambda: NOW)
    asked = template.render([USER], add_generation_prompt=False, tools=[WEATHER])
    text = _with_call(template)
    answer, tools = Answer(), {"weather": WEATHER["function"]["parameters"]}
    same = [one == other for one, other in zip(asked, text, strict=False)]
    begin = [*same, False].index(False)
    begin = text.rindex("weather", 0, begin) if "weather" in text[:begin] else begin
    parser = AnswerParser(format, tools, marks_of(source, format))
    if format.name == "harmony":
        begin = text.rindex("<|start|>")
    if format.bare:
        begin = text.rindex("\n\n{") + 2
    answer.add(parser.feed(text[begin:]))
    answer.add(parser.finish())
    assert [(one.name, one.values()) for one in answer.tool_calls] == [
        ("weather", {"city": "Köln", "days": 3})
    ]


def _with_call(template: ChatTemplate) -> str:
    """The conversation with the call, in the first form of it that the template takes."""
    messages: list[dict[str, Any]] = fenced_messages([USER, _openai(CALLING)], str)
    for form in for_template(messages, template.source):
        try:
            return template.render(form, add_generation_prompt=False, tools=[WEATHER])
        except TemplateError:
            continue
    raise AssertionError("no form of the messages is taken")


def _openai(message: dict[str, Any]) -> dict[str, Any]:
    (call,) = message["tool_calls"]
    function = {"name": "weather", "arguments": json.dumps(call["function"]["arguments"])}
    return {**message, "tool_calls": [{**call, "function": function}]}
