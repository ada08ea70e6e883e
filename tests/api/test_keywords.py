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
    "a typing error": (lambda model: model.session().generate("a", temprature=1), "mean 'temperature'"),
    "max_length": (lambda model: model.generate("a", max_length=1), "generate: .*mean 'max_tokens'"),
    "device_map": (lambda model: graphml.load("x", device_map="auto"), "load: .*mean 'backend'"),
    "format": (lambda model: model.generate("a", format="json"), "mean 'json_schema'"),
    "behind another": (lambda model: model.generate("a", temp=1, qqqq=1), "called 'qqqq'"),
    "of load": (lambda model: graphml.load("x", do_sample=True), "'temperature' is an argument of Sampl"),
    "twice": (lambda model: model.generate("a", max_tokens=1, n_predict=2), "'n_predict' is 'max_tokens'"),
    "two names": (lambda model: model.generate("a", max_new_tokens=1, n_predict=2), "'n_predict' is 'max_t"),
    "use_mmap": (lambda model: graphml.load("x", use_mmap=False), "load: no argument is called 'use_mmap'"),
    "do_sample": (lambda model: model.generate("a", do_sample=True), "wanted a temperature above 0 beside"),
    "no do_sample": (lambda model: model.generate("a", do_sample=False, temp=1), "no temperature but 0"),
    "of a chat": (lambda model: model.chat(max_new=1), "chat: .*mean 'max_tokens'"),
    "of a session": (lambda model: graphml.load("x", history=True), r"no argument is called 'history'\."),
    "n_ctx": (lambda model: model.generate("a", n_ctx=1), "'n_ctx' is an argument of load, Model.session"),
    "of sampling": (lambda model: graphml.load("x", temp=1), "'temperature' is an argument of Sampl"),
    "none near": (lambda model: model.engine(qqqqqq=1), r"no argument is called 'qqqqqq'\.$"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_keyword_names_the_nearest(model: graphml.Model, name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(graphml.UsageError, match=message) as told:
        call(model)
    assert isinstance(told.value, TypeError)  # as Python has it


SAME: dict[str, tuple[Callable[[graphml.Model], Any], Callable[[graphml.Model], Any]]] = {
    "settings": (
        lambda model: model.generate(
            prompt="hello", max_new_tokens=8, seed=3, temp=1.5, do_sample=True, repetition_penalty=1.1
        ),
        lambda model: model.generate("hello", None, 8, seed=3, temperature=1.5, repeat_penalty=1.1),
    ),
    "greedy": (
        lambda model: model.engine().submit("a", do_sample=False, num_predict=5).result(),
        lambda model: model.generate("a", max_tokens=5),
    ),
    "schema": (
        lambda model: model.generate("a", schema={"enum": [7]}),
        lambda model: model.generate("a", json_schema={"enum": [7]}),
    ),
    "an answer": (
        lambda model: model.chat(system_prompt="be kind").respond("a", max_new_tokens=4),
        lambda model: model.chat(system="be kind").respond("a", max_tokens=4),
    ),
    "params": (lambda model: SamplingParams(temp=1), lambda model: SamplingParams(temperature=1)),
    "sampling_params": (
        lambda model: model.generate("a", sampling_params=SamplingParams(), max_tokens=3),
        lambda model: model.generate("a", SamplingParams(), 3),
    ),
    "so anyway": (
        lambda model: model.generate(
            "a", max_tokens=3, echo=False, ignore_eos=False, num_beams=1, n=1, verbose=False
        ),
        lambda model: model.generate("a", max_tokens=3),
    ),
    "one beam": (
        lambda model: model.beam_search("a", num_beams=1, max_tokens=3),
        lambda model: model.beam_search("a", 1, 3),
    ),
    "num_ctx": (lambda model: model.session(num_ctx=32).n_ctx, lambda model: 32),
    "texts": (lambda model: model.embed(input=["a"]).tolist(), lambda model: model.embed(["a"]).tolist()),
    "dimensions": (lambda model: model.embed("a", truncate_dim=4).tolist(),
                   lambda model: model.embed("a", dimensions=4).tolist()),
    "load": (
        lambda model: opened(model, device="reference", n_threads=1, ctx=64, verbose=False, use_mmap=True),
        lambda model: 64,
    ),
}  # fmt: skip


def opened(model: graphml.Model, **keywords: Any) -> int | None:
    """The context of the same file opened with these keywords."""
    with graphml.load(model=model.path, **keywords) as other:
        assert other.executor.backend.name == "reference"
        return other.default_n_ctx


@pytest.mark.parametrize("name", SAME)
def test_another_name_of_the_same_is_taken(model: graphml.Model, name: str) -> None:
    by_their_name, by_ours = SAME[name]
    assert by_their_name(model) == by_ours(model)


def test_signatures_list_the_fields_for_tools_that_complete_names() -> None:
    for function in (graphml.Model.generate, graphml.Session.generate, graphml.Chat.events):
        assert {"temperature", "stop", "max_tokens", "seed"} <= set(inspect.signature(function).parameters)
