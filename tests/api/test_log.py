"""What is told to the log: opening, compiling and steps at DEBUG, and nothing is formatted without it."""

from __future__ import annotations

import logging

import pytest

import graphml
from tests.stories import STORIES


def test_opening_compiling_and_steps_are_told_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "graphml"), graphml.load(STORIES, threads=1, kv="f32") as model:
        model.generate("Once upon a time", max_tokens=3)
        caplog_of_engine = len(caplog.records)
        list(model.session().generate("Once upon a time", max_tokens=2))
    told = [record.getMessage() for record in caplog.records]
    assert any("opened as llama on cpu in" in line for line in told)
    assert any("compiled for 1 tokens in" in line for line in told)
    assert any(line.startswith("step of 5 tokens of 1 sequences in") for line in told)
    assert any(line.startswith("step of 1 tokens of 1") for line in told[caplog_of_engine:])
    assert {record.name.partition(".")[0] for record in caplog.records} == {"graphml"}


def test_without_a_level_no_record_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a record was made")

    monkeypatch.setattr(logging.Logger, "makeRecord", refuse)
    with graphml.load(STORIES, threads=1, kv="f32") as model:
        assert model.generate("Once", max_tokens=2).n_gen == 2


def test_errors_speak_of_arguments_in_python() -> None:
    with graphml.load(STORIES, threads=1, kv="f32") as model:
        for call, said in (
            (lambda: list(model.session(n_ctx=8).generate("Once", overflow="error")), "n_ctx in Python"),
            (lambda: model.session(n_ctx=2).eval([1, 2, 3]), "a larger n_ctx"),
            (model.chat, r"template=Path\(FILE\)"),
            (lambda: model.explain("layers"), "node: no node is called 'layers'"),
        ):
            with pytest.raises(graphml.GraphmlError, match=said):
                call()
