"""Answers are told apart into reasoning, text and calls, however they are split; what is no call is text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.text.answers import (
    Answer,
    AnswerParser,
    ContentDelta,
    ReasoningMarks,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    format_of,
    formats,
    marks_of,
)
from graphml.text.answers.answer_parser import MOST_MALFORMED
from tests.looped import looped
from tests.text.answer_samples import CUT, CUT_BEFORE_THE_NAME, MALFORMED, SAMPLES, TOOLS, Sample

NAMES = [f"{one.format}-{index}" for index, one in enumerate(SAMPLES)]
MARKERS = sorted({marker for one in formats().values() for marker in (*one.calls, *one.shown)})


def parser_of(sample: Sample, split: bool = True, tools: object = TOOLS) -> AnswerParser:
    ids = iter(range(1000))
    marks = None if sample.think is None else ReasoningMarks(*sample.think)
    return AnswerParser(
        formats()[sample.format], tools, marks, sample.inside, split, lambda: f"id{next(ids)}"
    )


def events_of(parser: AnswerParser, pieces):
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def merged(events):
    """Events with the deltas of one kind that follow each other joined."""
    found = []
    for event in events:
        key = (type(event), getattr(event, "index", None))
        if found and found[-1][0] == key and hasattr(event, "text"):
            found[-1] = (key, found[-1][1] + event.text)
        else:
            found.append((key, event.text if hasattr(event, "text") else event))
    return found


def answer_of(events) -> Answer:
    answer = Answer()
    answer.add(events)
    return answer


@looped("sample", SAMPLES, ids=NAMES)
def test_an_answer_is_told_apart(sample: Sample) -> None:
    answer = answer_of(events_of(parser_of(sample), [sample.text]))
    assert (answer.content, answer.reasoning) == (sample.content, sample.reasoning)
    assert [(call.name, call.values()) for call in answer.tool_calls] == list(sample.calls)


@looped("sample", SAMPLES, ids=NAMES)
def test_where_the_text_is_split_changes_nothing(sample: Sample) -> None:
    whole = merged(events_of(parser_of(sample), [sample.text]))
    for at in range(len(sample.text)):
        assert merged(events_of(parser_of(sample), [sample.text[:at], sample.text[at:]])) == whole, at
    assert merged(events_of(parser_of(sample), sample.text)) == whole


@looped(("name", "text"), MALFORMED)
def test_what_is_no_call_is_text_and_nothing_of_it_is_lost(name: str, text: str) -> None:
    parser = AnswerParser(formats()[name], TOOLS)
    answer = answer_of(events_of(parser, text))
    assert (answer.content, answer.tool_calls) == (text, [])
    whole = answer_of(events_of(AnswerParser(formats()[name], TOOLS), [text]))
    assert whole == answer


@looped(("name", "text", "arguments", "values"), CUT)
def test_a_call_in_which_the_answer_was_cut_is_one_that_is_not_whole(
    name: str, text: str, arguments: str, values: dict[str, Any]
) -> None:
    for holds in (True, False):
        parser = AnswerParser(formats()[name], TOOLS, holds=holds)
        answer = Answer()
        for piece in text:
            answer.add(parser.feed(piece))
        answer.add(parser.finish(cut=True))
        (call,) = answer.cut
        assert (answer.content, answer.tool_calls) == ("", [])
        assert (call.name, call.arguments, call.whole, call.values()) == ("weather", arguments, False, values)
        assert "tool_calls" not in answer.message()
        assert answer.message(cut=True)["tool_calls"]


@looped(("name", "text"), CUT_BEFORE_THE_NAME)
def test_marks_of_a_call_that_was_cut_before_its_name_are_no_text(name: str, text: str) -> None:
    for cut, content in ((True, ""), (False, text)):
        parser, answer = AnswerParser(formats()[name], TOOLS), Answer()
        answer.add(parser.feed(text))
        answer.add(parser.finish(cut=cut))
        assert (answer.content.strip(), answer.tool_calls, answer.cut) == (content.strip(), [], [])


def test_whole_calls_at_the_end_of_unclosed_reasoning_are_calls() -> None:
    called = (
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    )
    marks = ReasoningMarks("<think>", "</think>")
    for text, n_calls, reasoning in (
        (f"I look.\n{called}", 1, "I look."),
        (f"I look.\n{called}\n{called}\n", 2, "I look."),
        (f"As {called} or so", 0, f"As {called} or so"),
        (f"As {called}</think>", 0, f"As {called}"),
        (f"As {called[:-30]}", 0, f"As {called[:-30]}"),
        ("a <tool_call> b", 0, "a <tool_call> b"),
    ):
        for pieces in ([text], text):
            parser = AnswerParser(formats()["qwen3-coder"], TOOLS, marks, inside=True)
            answer = answer_of(events_of(parser, pieces))
            assert (len(answer.tool_calls), answer.reasoning, answer.content) == (n_calls, reasoning, "")


def test_space_at_the_end_of_cut_reasoning_is_no_text() -> None:
    for text in ("hm \n\n", "hm</think>\n\n", "\n"):
        for pieces in ([text], text):
            parser = AnswerParser(
                formats()["plain"], None, ReasoningMarks("<think>", "</think>"), inside=True
            )
            answer = Answer()
            for piece in pieces:
                answer.add(parser.feed(piece))
            answer.add(parser.finish(cut=True))
            assert (answer.content, answer.reasoning) == ("", text.partition("</think>")[0].strip())


@pytest.mark.parametrize(
    ("name", "begun", "behind"),
    [
        ("hermes", "<think>hm</think>", "\n\n<tool_call>\n"),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|>", "<|start|>assistant<|channel|>commentary to="),
    ],
)
def test_reasoning_ends_with_its_mark(name: str, begun: str, behind: str) -> None:
    parser = AnswerParser(formats()[name], TOOLS, ReasoningMarks("<think>", "</think>"))
    ended = []
    for letter in begun + behind:
        parser.feed(letter)
        ended.append(parser.reasoned)
    assert ended == [False] * (len(begun) - 1) + [True] * (len(behind) + 1)


def test_what_frames_an_answer_is_none_of_it() -> None:
    text = "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>"
    for pieces in ([text], text):
        answer = answer_of(events_of(AnswerParser(formats()["command-r7b"], TOOLS), pieces))
        assert (answer.content, answer.reasoning) == ("Hi", "hm")


def test_an_id_is_given_once() -> None:
    text = "".join(
        f"<|tool_call_begin|>functions.add:{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for n in (0, 0, 1)
    )
    text = f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>"
    parser = AnswerParser(formats()["kimi"], TOOLS, used_ids=["functions.add:0"])
    calls = answer_of(events_of(parser, text)).tool_calls
    assert [call.id for call in calls] == ["functions.add:1", "functions.add:2", "functions.add:3"]


def test_a_call_of_gpt_oss_without_arguments_is_one() -> None:
    text = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
    for cut, n_calls in ((False, 1), (True, 0)):
        parser, answer = AnswerParser(formats()["harmony"], TOOLS), Answer()
        answer.add(parser.feed(text))
        answer.add(parser.finish(cut=cut))
        assert [call.arguments for call in answer.tool_calls] == ["{}"] * n_calls


def test_a_whole_call_stays_when_the_next_one_breaks_off() -> None:
    text = 'a<tool_call>{"name": "add", "arguments": {}}</tool_call>\n<tool_call>{"name": "add", "arg'
    answer = answer_of(events_of(AnswerParser(formats()["hermes"], TOOLS), text))
    assert [call.name for call in answer.tool_calls] == ["add"]
    assert answer.content == 'a\n<tool_call>{"name": "add", "arg'


def test_arguments_stream_while_they_are_written() -> None:
    parser = AnswerParser(formats()["hermes"], TOOLS, new_id=lambda: "x", holds=False)
    assert parser.feed('<tool_call>{"name": "weather", "arguments": {"ci') == [
        ToolCallBegin(0, "x", "weather"), ToolCallDelta(0, '{"ci'),
    ]  # fmt: skip
    assert parser.feed('ty": "Ro') == [ToolCallDelta(0, 'ty": "Ro')]
    assert parser.feed('me"}}') == [ToolCallDelta(0, 'me"}'), ToolCallEnd(0)]
    assert parser.feed("</tool_call>") == parser.finish() == []


def test_text_is_not_held_back() -> None:
    parser = AnswerParser(formats()["hermes"], TOOLS)
    assert parser.feed("one two") == [ContentDelta("one two")]
    assert parser.feed(" <tool") == []
    assert parser.feed("box>") == [ContentDelta(" <toolbox>")]


def test_without_tools_there_are_no_calls() -> None:
    for sample in SAMPLES:
        if sample.calls and formats()[sample.format].whole is None and sample.format != "generic":
            answer = answer_of(events_of(parser_of(sample, tools=None), [sample.text]))
            assert answer.tool_calls == []
            text = sample.text
            for mark in formats()[sample.format].frame:
                text = text.replace(mark, "")
            assert re.sub(r"\s", "", answer.content) in re.sub(r"\s", "", text)
            assert sample.calls[0][0] in answer.content


def test_reasoning_that_is_not_split_is_text() -> None:
    for sample in SAMPLES:
        if sample.reasoning and sample.think is not None and not sample.calls:
            answer = answer_of(events_of(parser_of(sample, split=False), [sample.text]))
            assert (answer.content, answer.reasoning) == (sample.text, "")


def test_mistral_ids_have_nine_characters() -> None:
    text = "[TOOL_CALLS]add[ARGS]{}"
    (call,) = answer_of(events_of(AnswerParser(formats()["mistral"], TOOLS), [text])).tool_calls
    assert re.fullmatch("[0-9A-Za-z]{9}", call.id)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(sorted(formats())),
    st.lists(
        st.one_of(
            st.sampled_from([*MARKERS, *'{}[]":, \n<', "weather", '"name"', '"arguments"', "<think>", "1"]),
            st.text(max_size=3),
        ),
        max_size=25,
    ),
)
def test_any_text_is_told_apart_alike_however_it_is_split(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    sample = Sample(name, text, think=("<think>", "</think>"))
    whole = events_of(parser_of(sample), [text])
    assert merged(events_of(parser_of(sample), parts)) == merged(whole)
    assert merged(events_of(parser_of(sample), text)) == merged(whole)
    answer = answer_of(whole)
    for call in answer.tool_calls:
        assert call.name in TOOLS
        assert isinstance(json.loads(call.arguments), dict)
    if not answer.tool_calls and not answer.reasoning and name not in ("harmony", "generic", "muse-glimmer"):
        for mark in formats()[name].frame:
            text = text.replace(mark, "")
        assert re.sub(r"\s", "", answer.content).removeprefix("<think>") in re.sub(r"\s", "", text)


def test_a_format_is_found_by_name_and_unknown_names_are_refused() -> None:
    assert format_of("no markers").name == "plain"
    assert format_of("no markers", "glm").name == "glm"
    with pytest.raises(UsageError, match=r"chat_format: wanted one of .*hermes.*; got 'nobody'"):
        format_of("", "nobody")
    assert marks_of("... '<think>' ...", formats()["hermes"]) == ReasoningMarks("<think>", "</think>")
    assert marks_of("nothing", formats()["hermes"]) is None


def test_every_format_has_a_sample_and_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text("utf-8")
    for name in formats():
        assert any(sample.format == name for sample in SAMPLES), name
        assert f"`{name}`" in page


def test_many_openings_take_no_quadratic_time() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {' * 100 + "}" * 200
    parser = AnswerParser(formats()["hermes"], TOOLS)
    assert answer_of(events_of(parser, [text])).content == text
    assert parser.n_malformed == MOST_MALFORMED
