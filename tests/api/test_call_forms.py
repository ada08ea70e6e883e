"""Calls, results and reasoning of a history reach the model, whatever form its template wants them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphml.api import call_forms
from graphml.api.call_forms import FORMS, short_id
from graphml.api.chat_prompt import ChatPrompt, chat_prompt
from graphml.errors import TemplateError
from graphml.text.chat_template import ChatTemplate, TemplateLimits
from graphml.text.tokenizer import Tokenizer, load_tokenizer
from tests import template_corpus
from tests.template_corpus import NOW, TOKENS, USER, WEATHER
from tests.text.vocabularies import byte_pair

SOURCES = {
    path.stem: path.read_text() for path in template_corpus.DATA.glob("*.jinja")
} | template_corpus.corpus()
WANT_TOOLS = ("NousResearch",)
"""Templates that fail without tools."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    opened = load_tokenizer(byte_pair())
    assert opened is not None
    return opened


def prompt(tokenizer: Tokenizer, source: str, messages: list[Any], **more: Any) -> ChatPrompt:
    templates = {"default": ChatTemplate(source, **TOKENS, now=lambda: NOW)}
    return chat_prompt(tokenizer, templates, messages, **more)


def call(id: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": function}


def history(said: str = "", reasoning: str = "", n_calls: int = 2) -> list[dict[str, Any]]:
    calls = [
        call("toolu_01", city="Rome", days=3171, notes=["Forum", {"hill": "Caelius"}], sure=True),
        call("call-2", city="Oslo", days=4129),
    ][:n_calls]
    results = [("toolu_01", "sunny spells"), ("call-2", "heavy rain")][:n_calls]
    return [
        USER,
        {"role": "assistant", "content": said, "reasoning_content": reasoning, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id, "content": text} for id, text in results),
        {"role": "user", "content": "And then?"},
    ]


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize(
    ("said", "reasoning"), [("", ""), ("I look.", ""), ("", "They ask."), ("I look.", "They ask.")]
)
@pytest.mark.parametrize("tools", [[WEATHER], None], ids=["tools", "none"])
def test_values_of_calls_and_results_are_in_the_prompt(
    tokenizer: Tokenizer, name: str, said: str, reasoning: str, tools: Any
) -> None:
    if tools is None and name.startswith(WANT_TOOLS):
        return
    for n_calls in (1, 2):
        text = prompt(tokenizer, SOURCES[name], history(said, reasoning, n_calls), tools=tools).text
        values = ["Rome", "3171", "Forum", "hill", "Caelius", "sunny spells"]
        values += ["Oslo", "4129", "heavy rain"] if n_calls == 2 else []
        assert [value for value in values if value not in text] == []
        assert "PROBE" not in text
        ats = [text.rindex(value) for value in ("Rome", "sunny spells")]
        assert ats == sorted(ats)


@pytest.mark.parametrize("name", [name for name, source in sorted(SOURCES.items()) if "length 9" in source])
def test_ids_of_other_servers_become_nine_letters_the_same_for_a_call_and_its_result(
    tokenizer: Tokenizer, name: str
) -> None:
    ids = [short_id("toolu_01"), short_id("call-2")]
    assert short_id("toolu_01") == ids[0] != ids[1]
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    assert short_id("abcDEF123") == "abcDEF123"
    text = prompt(tokenizer, SOURCES[name], history(), tools=[WEATHER]).text
    counts = [text.count(id) for id in ids]
    assert counts in ([1, 1], [2, 2])  # some templates write those of results alone
    assert "toolu_01" not in text
    nameless = json.loads(json.dumps(history()).replace('"toolu_01"', "null").replace('"call-2"', "null"))
    text = prompt(tokenizer, SOURCES[name], nameless, tools=[WEATHER]).text
    assert [text.count(short_id(f"call_{index}")) for index in range(2)] == counts


def test_results_in_another_order_follow_their_own_calls(tokenizer: Tokenizer) -> None:
    source = SOURCES["meta-llama-Llama-3.1-8B-Instruct"]
    messages = history()
    messages[2:4] = messages[3:1:-1]
    messages.insert(4, {"role": "tool", "tool_call_id": "nobody's", "content": "stray"})
    text = prompt(tokenizer, source, messages, tools=[WEATHER]).text
    ats = [text.index(value) for value in ("Rome", "sunny", "Oslo", "heavy", "stray")]
    assert ats == sorted(ats)


ONE_A_TURN = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}"
    "{{ raise_exception('one call a turn') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments.city }} {% else %}{{ m.content }} {% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("calls", "results", "shown"),
    [
        ("aa", "aa", "x R0 y R1"),
        ("ab", "aab", "x R0 R1 y R2"),
        ("aa", "aaa", "x R0 y R1 R2"),
        ("aba", "aab", "x R0 y R2 z R1"),
        ("1-", "1-", "x R0 y R1"),
        ("-0", "-0", "x R0 y R1"),
        ("a-", "a-", "x R0 y R1"),
        ("ab", "cd", "x R0 y R1"),
        ("ab", "acb", "x R0 y R2 R1"),
    ],
)
def test_each_result_is_shown_once_behind_its_own_call_whatever_the_ids_are(
    tokenizer: Tokenizer, calls: str, results: str, shown: str
) -> None:
    ids = {letter: letter for letter in "abcd"} | {"-": "", "0": "call_0", "1": "call_1"}
    turn = [call(ids[letter], city=city) for letter, city in zip(calls, "xyz", strict=False)]
    messages = [{"role": "assistant", "content": "", "tool_calls": turn}] + [
        {"role": "tool", "tool_call_id": ids[letter], "content": f"R{index}"}
        for index, letter in enumerate(results)
    ]
    assert prompt(tokenizer, ONE_A_TURN, messages).text.split() == shown.split()


def test_calls_of_lfm2_are_what_the_model_wrote(tokenizer: Tokenizer) -> None:
    text = prompt(tokenizer, SOURCES["LFM2-8B-A1B"], history(n_calls=1), tools=[WEATHER]).text
    assert "<|im_start|>assistant\n<|tool_call_start|>[weather(city=" in text
    assert "null" not in text


THINKS = (
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}\n{% endfor %}assistant: "
)


@pytest.mark.parametrize(
    ("content", "begun", "inside"),
    [
        ("<think>\nhm\n</think>\n\nYes", "<think>\nhm\n</think>\n\nYes", False),
        ("<think>hm</think>Yes", "<think>\nhm\n</think>\n\nYes", False),
        ("<think>\nhm", "<think>\nhm", True),
        ("<think>\n\n</think>\n\nYes", "<think>\n\n</think>\n\nYes", False),
        ("Yes", "Yes", False),
    ],
    ids=range(5),
)
def test_a_begun_answer_with_marks_gets_no_second_ones(
    tokenizer: Tokenizer, content: str, begun: str, inside: bool
) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    for source, mark in ((THINKS + "{# <think> #}", ""), (THINKS + "{{ '<think>\n' }}", "<think>\n")):
        made = prompt(tokenizer, source, messages)
        wanted = begun if begun.startswith(mark) else f"{mark}\n</think>\n\n{begun}"
        assert made.text == f"user: |Weather?\nassistant: {wanted}"
        assert made.inside == inside


@pytest.mark.parametrize(
    "place", ["m.reasoning", "m['thinking']", 'm.get("reasoning")', "m.reasoning_content"]
)
def test_reasoning_has_the_name_that_a_template_reads(tokenizer: Tokenizer, place: str) -> None:
    source = f"{{% for m in messages %}}{{{{ {place} }}}}{{% endfor %}}"
    messages = [{"role": "assistant", "content": "", "reasoning_content": "hm"}, USER]
    assert prompt(tokenizer, source, messages).text.startswith("hm")


def test_reasoning_in_the_content_of_a_history_is_apart(tokenizer: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}, USER]
    text = prompt(tokenizer, THINKS + "{# <think> #}", messages).text
    assert "assistant: hm|Yes\n" in text


def test_a_template_that_meets_its_limits_is_tried_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "{{ tools }}<tool_call>{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    template, rendered = ChatTemplate(source, limits=TemplateLimits(seconds=0.05)), list[Any]()
    render = template.render
    monkeypatch.setattr(
        template, "render", lambda *given, **named: rendered.append(given) or render(*given, **named)
    )
    for messages in (history(), [{"role": "system", "content": "x"}, *history()]):
        with pytest.raises(TemplateError, match="takes longer"):
            chat_prompt(tokenizer, {"default": template}, messages, tools=[WEATHER])
        assert len(rendered) == 1
        rendered.clear()


def test_what_is_known_of_templates_may_be_dropped_by_another_thread(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropped(dict[str, Any]):
        def __setitem__(self, source: str, form: Any) -> None:
            """Another thread has cleared it."""

    monkeypatch.setattr(call_forms, "_KNOWN", Dropped())
    assert "Rome" in prompt(tokenizer, ONE_A_TURN, history()).text


def test_forms_are_few_and_each_once() -> None:
    assert len(set(FORMS)) == len(FORMS) < 50
