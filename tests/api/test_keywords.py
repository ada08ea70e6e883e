"""Settings of sampling as keywords; and a keyword that does not exist names the one that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import graphml
from graphml import SamplingParams

WARM = {"temperature": 1.5, "top_k": 20, "top_p": 0.9}


def test_keywords_are_the_fields_of_the_params(model: graphml.Model) -> None:
    wanted = model.generate("hello", SamplingParams(**WARM), 8, seed=3).tokens
    assert wanted != model.generate("hello", None, 8, seed=3).tokens
    assert model.generate("hello", max_tokens=8, seed=3, **WARM).tokens == wanted
    half = SamplingParams(temperature=1.5)
    assert model.generate("hello", half, max_tokens=8, seed=3, top_k=20, top_p=0.9).tokens == wanted
    assert model.generate("hello", half, 8, 3, **WARM).tokens == wanted  # both say the same
    with model.engine() as engine:
        assert engine.submit("hello", max_tokens=8, seed=3, **WARM).result().tokens == wanted
    session = model.session()
    assert [one.id for one in session.generate("hello", max_tokens=8, seed=3, **WARM)] == wanted


def test_each_prompt_has_its_own_params_with_the_keywords(model: graphml.Model) -> None:
    params = [SamplingParams(temperature=1.5), SamplingParams(temperature=0.7)]
    each = [SamplingParams(temperature=1.5, top_k=9), SamplingParams(temperature=0.7, top_k=9)]
    got = model.generate(["hello", "hello"], params, 6, seed=1, top_k=9)
    assert [one.tokens for one in got] == [one.tokens for one in model.generate(["hello"] * 2, each, 6, 1)]


def test_params_and_a_keyword_that_say_different_things_are_refused(model: graphml.Model) -> None:
    with pytest.raises(graphml.UsageError, match=r"temperature: params says 0.5 and the keyword 0.8; wanted"):
        model.generate("hello", SamplingParams(temperature=0.5), temperature=0.8)
    with pytest.raises(graphml.UsageError, match="top_p: wanted a number from 0 to 1, got 2"):
        model.generate("hello", top_p=2)


def test_chats_take_them_too(model: graphml.Model) -> None:
    answers = []
    for how in ({"params": SamplingParams(**WARM)}, WARM):
        chat = model.chat(seed=5)
        chat.add_user("hello")
        answers.append(chat.respond(max_tokens=5, **how))
        answers[-1] += "".join(chat.regenerate(max_tokens=5, seed=5, **how))
    assert answers[0] == answers[1]
    chat.respond("more", max_tokens=2)
    assert len(chat.session.generated) == 2


CALLS: dict[str, tuple[Callable[[graphml.Model], Any], str]] = {
    "temp": (lambda model: model.generate("a", temp=1), "generate: no argument is called 'temp'. Did"),
    "max_new_tokens": (lambda model: model.generate("a", max_new_tokens=1), "mean 'max_tokens'"),
    "num_predict": (lambda model: model.engine().submit("a", num_predict=1), "mean 'max_tokens'"),
    "a typing error": (lambda model: model.session().generate("a", temprature=1), "mean 'temperature'"),
    "of a chat": (lambda model: model.chat(max_tokens=1), "mean 'max_new'"),
    "of an answer": (lambda model: model.chat().respond("a", max_new_tokens=1), "mean 'max_tokens'"),
    "num_ctx": (lambda model: model.session(num_ctx=1), "mean 'n_ctx'"),
    "of a session": (lambda model: graphml.load("x", history=True), r"no argument is called 'history'\."),
    "n_ctx": (lambda model: model.generate("a", n_ctx=1), "'n_ctx' is an argument of load, Model.session"),
    "schema": (lambda model: model.generate("a", schema={}), "mean 'json_schema'"),
    "of an answers": (lambda model: model.chat(json_schema={}), "'json_schema' is an argument of Sampl"),
    "device": (lambda model: graphml.load("x", device="cuda"), "load: .*mean 'backend'"),
    "of sampling": (lambda model: graphml.load("x", temp=1), "'temperature' is an argument of Sampl"),
    "of the params": (lambda model: SamplingParams(temp=1), "SamplingParams: .*mean 'temperature'"),
    "none near": (lambda model: model.engine(qqqqqq=1), r"no argument is called 'qqqqqq'\.$"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_keyword_names_the_nearest(model: graphml.Model, name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(graphml.UsageError, match=message) as told:
        call(model)
    assert isinstance(told.value, TypeError)  # as Python has it


def test_signatures_list_the_fields_for_tools_that_complete_names() -> None:
    for function in (graphml.Model.generate, graphml.Session.generate, graphml.Chat.events):
        assert {"temperature", "stop", "max_tokens", "seed"} <= set(inspect.signature(function).parameters)
