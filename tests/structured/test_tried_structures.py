"""Structures of others are compiled in a process first: hostile ones end it, all others are as ever."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from graphml import SamplingParams
from graphml.api.call_grammar import _part_or_error
from graphml.errors import UsageError
from graphml.sampling.structured import params_structure, tried_structures
from graphml.sampling.structured.compile_turns import Asker, asked_by
from graphml.sampling.structured.params_structure import KEPT_BYTES, _KeptStructures, matcher_of
from graphml.sampling.structured.tried_structures import structure_bytes, tried_part
from graphml.system.kept_processes import KeptProcesses
from tests.stories import STORIES
from tests.structured.words import WORDS


def chain(n: int) -> str:
    """Definitions of which each leads to the next one twice."""
    defined: dict[str, Any] = {str(n): {"type": "integer"}}
    for i in range(n):
        onward = {"$ref": f"#/$defs/{i + 1}"}
        defined[str(i)] = {"anyOf": [onward, {"type": "object", "properties": {"x": onward}}]}
    return json.dumps({"$defs": defined, "$ref": "#/$defs/0"})


EXPONENTIAL = json.dumps(
    {"allOf": [{"type": "string", "pattern": f".{{{i}}}[abc].{{{i}}}"} for i in range(3, 40)]}
)
QUADRATIC = json.dumps(
    {"type": "object", "patternProperties": {f"^a{i}[a-z]*{i}$": {"type": "integer"} for i in range(900)}}
)
LARK = "start: A\nA: " + " & ".join(f"/(.|\\n)*[a-c](.|\\n){{{i}}}/" for i in range(3, 40))
HOSTILE = {
    "3 GB and more of expressions in 2 KB": ("json_schema", EXPONENTIAL, 5.0, "end, exit code -6"),
    "the same in Lark": ("lark", LARK, 5.0, "end, exit code -6"),
    "minutes for expressions of names": ("json_schema", QUADRATIC, 0.3, "time, exit code -27"),
    "a stack of references, which would fit here": ("json_schema", chain(800), 5.0, "end, exit code -11"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit the time alone")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_structure_ends_its_process_and_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, text, seconds, end = HOSTILE[kind]
    monkeypatch.setattr(tried_structures, "SECONDS", seconds)
    monkeypatch.setattr(tried_structures, "SECONDS_PER_CHAR", 0)
    monkeypatch.setattr(tried_structures, "MEMORY", 64 << 20)
    words = rf"{name}: wanted one that compiles within {seconds:.2f} s and .* its process ended \({end}\)"
    with pytest.raises(UsageError, match=words):
        structure_bytes(name, text, WORDS)
    monkeypatch.undo()
    assert structure_bytes("regex", "[ab]+", WORDS) >= 0  # in another one


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = KeptProcesses(tried_structures.PROCESSES._program, 1)
    monkeypatch.setattr(tried_structures, "PROCESSES", processes)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    for _ in range(2):  # and it does not count
        with pytest.raises(UsageError, match=r"^regex: no process that compiles it can be started: .*such"):
            structure_bytes("regex", "a", WORDS)


def test_limits_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, int]] = []

    def answer(process: Any, request: bytes, seconds: float, memory: int, most: int) -> tuple[int, str]:
        seen.append((seconds, memory))
        return 0, "5"

    monkeypatch.setattr("graphml.system.kept_processes.KeptProcess.answer", answer)
    assert structure_bytes("regex", "a" * 1000, WORDS) == 5
    assert structure_bytes("choices", ("ab", "a" * 99_998), WORDS) == 5
    assert seen == [
        (pytest.approx(1.01), (128 << 20) + 512_000),
        (pytest.approx(2.0), (128 << 20) + 51_200_000),
    ]


def test_a_part_of_a_grammar_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "string", "not": {"const": "é"}}}})
    direct = _part_or_error("tools: f", schema, True, True)
    monkeypatch.setattr("graphml.api.call_grammar.forceable_part", lambda *_: pytest.fail("compiled here"))
    with asked_by(Asker()):
        assert _part_or_error("tools: f", schema, True, True) == direct
        assert _part_or_error("json_schema", schema, True, False) == (
            "at #/properties/a/not: not is not supported"
        )
        monkeypatch.setattr(tried_structures, "SECONDS", 0.1)
        error = _part_or_error("tools: f", EXPONENTIAL, True, True)
    assert isinstance(error, str)
    assert error.startswith("wanted one that compiles within")


@pytest.mark.parametrize(
    "structure",
    [
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
        {"regex": "[ab]{3}"},
        {"choices": ("yes", "no")},
        {"lark": "start: /[0-9]+/"},
        {"grammar": '%llguidance {}\nstart: "a" | "b"'},
        {"grammar": 'root ::= "a" | "b"'},
        {"begins_with": "Once"},
    ],
)
def test_what_is_tried_is_then_as_without(
    structure: dict[str, Any], stories_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(
        params_structure,
        "structure_bytes",
        lambda name, *rest: tried.append(name) or structure_bytes(name, *rest),
    )
    monkeypatch.setattr(params_structure, "_STRUCTURES", _KeptStructures())
    params = SamplingParams(**structure)
    with asked_by(Asker()):
        matcher = matcher_of(params, stories_tokenizer)
        again = matcher_of(params, stories_tokenizer)
    monkeypatch.setattr(params_structure, "_STRUCTURES", _KeptStructures())
    direct = matcher_of(params, stories_tokenizer)
    assert matcher is not None
    assert direct is not None
    assert again is not None
    assert matcher.mask().tolist() == direct.mask().tolist() == again.mask().tolist()
    by_us = "begins_with" in structure or structure.get("grammar", "").startswith("root")
    assert len(tried) == (0 if by_us else 1)  # once, and not without an asker


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json_schema", '{"not": {}}'),
        ("json_schema", '{"type": 3}'),
        ("regex", "("),
        ("lark", "start: b"),
    ],
)
def test_what_is_wrong_is_told_as_without(name: str, text: str, stories_tokenizer: Any) -> None:
    params = SamplingParams(**{name: text})
    with pytest.raises(UsageError) as direct:
        matcher_of(params, stories_tokenizer)
    with asked_by(Asker()), pytest.raises(UsageError) as tried:
        matcher_of(params, stories_tokenizer)
    assert str(tried.value) == str(direct.value)


def test_a_vocabulary_goes_to_a_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = KeptProcesses(tried_structures.PROCESSES._program, 1)
    monkeypatch.setattr(tried_structures, "PROCESSES", processes)
    structure_bytes("regex", "a", WORDS)
    monkeypatch.setattr(tried_structures, "_FOR_VOCABULARIES", None)  # would fail
    structure_bytes("regex", "b", WORDS)
    lark = 'start: <[0]> "a"'  # of control tokens
    structure_bytes("lark", lark, WORDS)
    assert tried_part('{"type": "null"}', True, False) == ({"type": "null"}, ())
    processes.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say it")
def test_the_memory_of_a_structure_is_measured_and_bounds_what_is_kept(stories_tokenizer: Any) -> None:
    small, large = structure_bytes("regex", "a", WORDS), structure_bytes(
        "choices", tuple(f"value number {i}" for i in range(3000)), WORDS
    )  # fmt: skip
    assert small < 1 << 20 < large
    kept = _KeptStructures()
    compiled = params_structure._compiled(params_structure._Key(WORDS, "regex", "a"), 0)
    for i in range(6):
        n_bytes = KEPT_BYTES // 4
        kept.add(params_structure._Key(WORDS, "regex", str(i)), compiled._replace(n_bytes=n_bytes))
    texts = [i for i in range(6) if kept.get(params_structure._Key(WORDS, "regex", str(i))) is not None]
    assert texts == [2, 3, 4, 5]


@pytest.fixture(scope="module")
def stories_tokenizer() -> Any:
    import graphml

    with graphml.load(STORIES, backend="reference", n_batch=16) as model:
        yield model.tokenizer
