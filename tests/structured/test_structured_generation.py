"""Generations that follow a structure: in sessions, in engines, on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.sampling import SamplingParams, grammar, json_schema
from tests import tiny_model

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"enum": ["x", "yes"]},
        "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["a", "b", "c"],
}
CASES = {
    "grammar": SamplingParams(grammar='root ::= "<" [a-z]{3,9} ">"'),
    "regex": SamplingParams(regex="[0-9]{3}-(ab|cd)", temperature=1.0, top_k=5),
    "choices": SamplingParams(choices=("yes", "no", "may be"), temperature=2.0, min_p=0.1),
    "json_schema": SamplingParams(json_schema=SCHEMA, temperature=1.0, repeat_penalty=1.1),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("structured") / "tiny.gguf")
    with graphml.load(path, backend="cpu", threads=1, n_batch=16, kv="f32") as opened:
        yield opened


def text_of(model: graphml.Model, params: SamplingParams, seed: int) -> tuple[str, str | None, list[int]]:
    session = model.session(seed=seed)
    text = "".join(token.piece for token in session.generate(model.encode("hello world"), params, 120))
    return text, session.stop_reason, session.generated


def follows(name: str, text: str) -> bool:
    if name == "json_schema":
        return json_schema(SCHEMA).accepts(text)
    if name == "choices":
        return text in CASES[name].choices
    return re.fullmatch("<[a-z]{3,9}>" if name == "grammar" else CASES[name].regex, text) is not None


@pytest.mark.parametrize("name", CASES)
def test_sessions_and_engines_write_what_follows_it(model: graphml.Model, name: str) -> None:
    alone = [text_of(model, CASES[name], seed) for seed in range(4)]
    for text, reason, _ in alone:
        assert follows(name, text) or reason == "length"
    assert any(reason == "end" for _, reason, _ in alone)
    with model.engine(
        max_sequences=3, n_ctx=160
    ) as engine:  # four at a time do not fit, and free text beside
        free = engine.submit("hello world", SamplingParams(), 20)
        handles = [engine.submit("hello world", CASES[name], 120, seed=seed) for seed in range(4)]
        assert [handle.result().tokens for handle in handles] == [ids for _, _, ids in alone]
        assert free.result().tokens == text_of(model, SamplingParams(), 0)[2][:20]


def test_continuations_of_one_request_have_their_own_places(model: graphml.Model) -> None:
    with model.engine(max_sequences=4, n_ctx=160) as engine:
        found = engine.submit("hello", CASES["regex"], 40, seed=1, n=4).results()
    assert all(re.fullmatch("[0-9]{3}-(ab|cd)", one.text) for one in found)
    assert len({one.text for one in found}) > 1


def test_preempted_sequences_go_on_where_they_were(model: graphml.Model) -> None:
    params = SamplingParams(grammar='root ::= ("(" [0-9]{10} ")"){8}', temperature=1.0)
    alone = [text_of(model, params, seed)[0] for seed in range(3)]
    with model.engine(max_sequences=3, n_ctx=160, kv_memory=None) as engine:
        handles = [engine.submit("hello world", params, 120, seed=seed) for seed in range(3)]
        assert [one.result().text for one in handles] == alone
    assert all(grammar(params.grammar).accepts(one) for one in alone)


def test_a_second_generation_begins_anew_and_free_text_stays_free(model: graphml.Model) -> None:
    session = model.session(seed=1)
    first = "".join(one.piece for one in session.generate(model.encode("a"), CASES["choices"], 30))
    second = "".join(one.piece for one in session.generate(model.encode("b"), CASES["choices"], 30))
    assert {first, second} <= set(CASES["choices"].choices)
    session.eval(model.encode("c"))
    with pytest.raises(UsageError, match="within `generate`"):
        session.sample(CASES["choices"])
    session.sample(SamplingParams())


def test_a_wrong_structure_is_refused_at_once(model: graphml.Model) -> None:
    for fields, words in [
        ({"grammar": "root ::= ("}, "line 1, column 11"),
        ({"json_schema": "{"}, "wanted JSON"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"regex": "(a"}, "regex"),
        ({"choices": ("a",), "regex": "a"}, "wanted one of them"),
        ({"json_schema": 3}, "json_schema"),
    ]:
        with pytest.raises(UsageError, match=words), model.engine(n_ctx=64) as engine:
            engine.submit("hello", SamplingParams(**fields))  # type: ignore[arg-type]
    session = model.session()
    with pytest.raises(UsageError, match="line 1"):
        session.generate(model.encode("a"), SamplingParams(grammar="x"))


def test_flags_and_files(model: graphml.Model, tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "<" [a-z]{3} ">"', "utf-8")
    (tmp_path / "s.json").write_text(json.dumps({"enum": ["a", 5]}), "utf-8")
    run = [
        "run",
        str(model.path),
        "--raw",
        "-p",
        "hello",
        "--json",
        "--backend",
        "cpu",
        "-s",
        "1",
        "-n",
        "40",
    ]
    for flags, wanted in [
        (["--grammar", 'root ::= "x"{3}'], "xxx"),
        (["--grammar-file", str(tmp_path / "g.gbnf")], "<[a-z]{3}>"),
        (["--json-schema", '{"const": 17}'], "17"),
        (["--json-schema-file", str(tmp_path / "s.json")], '"a"|5'),
        (["--choice", "left", "--choice", "right"], "left|right"),
        (["--regex", "a[bc]d"], "a[bc]d"),
    ]:
        result = CliRunner().invoke(app, [*run, *flags])
        assert result.exit_code == 0, result.output
        assert re.fullmatch(wanted, json.loads(result.stdout)["text"]), result.output
