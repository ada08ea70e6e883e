"""Structures that begin late: from a trigger on, or behind a text; and text that a structure forces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from threading import Event

import pytest

import graphml
from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.sampling.schemas.time_limit import within_seconds
from graphml.sampling.structured import params_structure
from graphml.sampling.structured.gbnf_grammar import GbnfGrammar
from graphml.sampling.structured.gbnf_parser import parse_gbnf
from graphml.sampling.structured.lazy_matcher import LazyMatcher, Triggers
from graphml.sampling.structured.matcher import Matcher
from graphml.sampling.structured.params_structure import compiled_structure, matcher_of
from graphml.sampling.structured.token_bytes import TokenBytes
from tests import tiny_model
from tests.looped import looped

TAG = 'root ::= "<" [a-z]{3} ">"'
FORCED = SamplingParams(
    grammar='root ::= [xy] "hello world, hello world: " [a-z]{2} " and world."', temperature=1.0
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("late") / "tiny.gguf")
    with graphml.load(path, backend="cpu", threads=1, n_batch=32, kv="f32") as opened:
        yield opened


def accepted(model: graphml.Model, params: SamplingParams, text: str) -> bool:
    matcher = matcher_of(params, model.tokenizer)
    assert matcher is not None
    assert model.tokenizer is not None
    for token in model.tokenizer.encode(text, add_special=False):
        if not matcher.allowed([token] * 20).all() or not matcher.allows(token):
            return False
        matcher.accept(token)
    return matcher.may_end()


def test_a_structure_counts_behind_a_text_which_must_come(model: graphml.Model) -> None:
    params = SamplingParams(grammar=TAG, grammar_after="</t>")
    assert accepted(model, params, "free < text</t><abc>")
    assert not accepted(model, params, "free text</t>x<abc>")
    assert not accepted(model, params, "free text")
    matcher = matcher_of(params, model.tokenizer)
    assert matcher is not None
    assert not matcher.mask()[matcher.eog].any()
    assert matcher.mask().sum() > 200


@looped(
    "trigger",
    ["<", {"type": 1, "value": "<"}, {"type": 2, "value": "(<)[a-z]"}, {"type": "word", "value": "<"}],
)
def test_a_lazy_structure_counts_from_its_trigger_on(model: graphml.Model, trigger: object) -> None:
    params = SamplingParams(grammar=TAG, grammar_lazy=True, grammar_triggers=(trigger,))
    assert accepted(model, params, "no tag at all")
    assert accepted(model, params, "text <abc>")
    assert not accepted(model, params, "text <abc> more")


def test_a_token_or_a_whole_text_triggers_too_and_reasoning_comes_before(model: graphml.Model) -> None:
    assert model.tokenizer is not None
    (token,) = model.tokenizer.encode("<", add_special=False)
    for trigger in (token, {"type": 0, "token": token}):
        params = SamplingParams(grammar=TAG, grammar_lazy=True, grammar_triggers=[trigger])
        assert accepted(model, params, "a <abc>")
        assert not accepted(model, params, "a <abcd>")
    whole = SamplingParams(grammar=TAG, grammar_lazy=True, grammar_triggers=[{"type": 3, "value": "<a"}])
    assert accepted(model, whole, "b <a free")
    assert not accepted(model, whole, "<abcd")
    both = SamplingParams(grammar=TAG, grammar_lazy=True, grammar_triggers=["<"], grammar_after="#")
    assert accepted(model, both, "<z # free <abc>")
    assert not accepted(model, both, "# <abcd>")


def test_rewinds_and_copies_of_late_matchers(model: graphml.Model) -> None:
    assert model.tokenizer is not None
    matcher = matcher_of(SamplingParams(grammar=TAG, grammar_after="#"), model.tokenizer)
    assert matcher is not None
    ids = model.tokenizer.encode("ab#<x", add_special=False)
    for token in ids:
        matcher.accept(token)
    again = matcher.copy()
    matcher.catch_up(ids[:2], 2)
    assert matcher.mask().sum() > 200 > again.mask().sum() > 0
    matcher.catch_up(ids, len(ids))
    assert (matcher.mask() == again.mask()).all()


def test_a_trigger_that_the_structure_does_not_follow_is_free_text_where_that_is_allowed() -> None:
    """A token may hold more than the trigger, which no mask has seen."""
    pieces = (*(bytes([one]) for one in range(256)), b"<end>", b">x")
    tokens = TokenBytes(pieces, frozenset([256]))
    grammar = GbnfGrammar(parse_gbnf('root ::= "<a>1"', "root"), tokens)

    def made(tolerant: bool) -> LazyMatcher:
        triggers = Triggers(["<a>"], (), tolerant=tolerant)
        return LazyMatcher(lambda: Matcher(grammar.begin(), tokens, "grammar"), tokens, triggers, "lazy")

    says = "lazy: the text '<a>x' from the trigger on does not follow the structure: behind '<a' it has '>1'"
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        _accept_all(made(False), b"<a", 257)
    free = made(True)
    _accept_all(free, b"<a", 257)
    assert free.waiting
    assert free.allows(ord("2"))
    copied = free.copy()
    copied.accept(ord("<"))
    assert copied.waiting
    free.rewind(1)
    free.accept(ord(">"))
    assert not free.waiting
    assert [one for one in range(256) if free.allows(one)] == [ord("1")]


@looped(
    ("grammar", "trigger", "begins"),
    [
        ('"[" [a-z]+ "]"', "Par", "with '['"),
        ("[cab] [0-9]", "x", "with 'a', 'b', 'c'"),
        ("[^x]", "x", "with ' ', '!', '\"', '#', '$', '%', '&', \"'\", ..., a character beyond ASCII"),
        ('"é"?', "x", "with a character beyond ASCII or ends"),
    ],
)
def test_a_trigger_that_cannot_begin_the_structure_is_named_with_what_can(
    grammar: str, trigger: str, begins: str
) -> None:
    tokens = TokenBytes((*(bytes([one]) for one in range(256)), b"<end>"), frozenset([256]))
    structure = GbnfGrammar(parse_gbnf(f"root ::= {grammar}", "root"), tokens)
    says = f"lazy: the trigger's text {trigger!r} cannot begin the structure, which begins {begins}"
    for triggers in (Triggers([trigger], ()), Triggers((), [ord(trigger[-1])])):
        matcher = LazyMatcher(lambda: Matcher(structure.begin(), tokens), tokens, triggers, "lazy")
        named = says if triggers.patterns else says.replace(repr(trigger), repr(trigger[-1]))
        with pytest.raises(UsageError, match=f"^{re.escape(named)}$"):
            _accept_all(matcher, trigger[:-1].encode(), ord(trigger[-1]))


def _accept_all(matcher: LazyMatcher, data: bytes, last: int) -> None:
    for token in (*data, last):
        matcher.accept(token)


def test_control_tokens_are_spelled_for_triggers() -> None:
    pieces = (*(bytes([one]) for one in range(256)), b"<end>", b"")
    tokens = TokenBytes(pieces, frozenset([256]), frozenset([256, 257]), {"<call>": 257}.get)
    grammar = compiled_structure("lark", "start: <[257]> /[0-9]/", tokens)
    pattern = r"\A(?:<r>(?s:.*?)</r>|(?!<r>))(?s:.*?)(<call>)"
    for before, waits in ((b"", False), (b"Well: ", False), (b"<r>", True), (b"<r>x</r>", False)):
        triggers = Triggers([pattern], (), spelled={257: b"<call>"}, tolerant=True)
        matcher = LazyMatcher(lambda: Matcher(grammar.begin(), tokens, "x"), tokens, triggers, "lazy")
        _accept_all(matcher, before, 257)
        assert matcher.waiting == waits
        assert matcher.allows(ord("x")) == waits


def test_wrong_late_structures_are_refused() -> None:
    for fields, words in [
        ({"grammar": TAG, "grammar_lazy": True}, "grammar_triggers: wanted some"),
        ({"grammar_lazy": True, "grammar_triggers": ["<"]}, "grammar_lazy: wanted one of"),
        ({"grammar_after": "</think>"}, "grammar_after: wanted one of"),
        ({"grammar": TAG, "grammar_triggers": [""]}, "grammar_triggers: wanted texts"),
        ({"grammar": TAG, "grammar_triggers": [{"type": 9, "value": "a"}]}, "grammar_triggers: wanted texts"),
        ({"grammar": TAG, "grammar_lazy": 1}, "grammar_lazy: wanted True or False"),
    ]:
        with pytest.raises(UsageError, match=words):
            SamplingParams(**fields)  # type: ignore[arg-type]
    model_free = SamplingParams(grammar=TAG, grammar_lazy=True, grammar_triggers=[{"type": 2, "value": "("}])
    with pytest.raises(UsageError, match="wanted a model with a tokenizer"):
        matcher_of(model_free, None)


def test_forced_text_goes_in_as_one_chunk(model: graphml.Model) -> None:
    session = model.session(seed=3)
    text = "".join(one.piece for one in session.generate(model.encode("hello"), FORCED, 100))
    assert re.fullmatch("[xy]hello world, hello world: [a-z]{2} and world.", text)
    with model.engine(max_sequences=2, n_ctx=160) as engine:
        before = engine.stats().n_steps
        result = engine.submit("hello", FORCED, 100, seed=3).result()
        n_steps = engine.stats().n_steps - before
        slow = engine.submit("hello", _one_by_one(FORCED), 100, seed=3).result()
        short = engine.submit("hello", FORCED, 5, seed=3).result()
    assert (result.text, result.tokens) == (text, session.generated)
    assert n_steps <= 12 < len(result.tokens)
    assert engine.stats().n_steps - n_steps - before >= len(slow.tokens)
    assert short.tokens == result.tokens[:5]
    assert short.stop_reason == "length"


def _one_by_one(params: SamplingParams) -> SamplingParams:
    return SamplingParams(grammar=params.grammar, temperature=1.0, rng="llama.cpp")


def test_lark_and_any_json(model: graphml.Model) -> None:
    for params, text, wanted in [
        (SamplingParams(lark='start: "a" /[0-9]+/ ("," /[0-9]+/)*'), "a12,3", True),
        (SamplingParams(lark='start: "a" /[0-9]+/'), "a,", False),
        (SamplingParams(json_schema={}), '{"a": [1, null]}', True),
        (SamplingParams(json_schema=True), "[1]", True),
        (SamplingParams(json_schema={"type": "object"}), "[1]", False),
    ]:
        matcher = matcher_of(params, model.tokenizer)
        assert matcher is not None
        assert matcher.accepts(text) is wanted
    with pytest.raises(UsageError, match="no value is valid"):
        matcher_of(SamplingParams(json_schema=False), model.tokenizer)
    with pytest.raises(UsageError, match="lark"):
        matcher_of(SamplingParams(lark="start: b"), model.tokenizer)


def test_an_expression_that_takes_exponential_time_ends_its_request_alone(model: graphml.Model) -> None:
    hostile = {"type": 2, "value": "(x|xx)+y"}
    params = SamplingParams(grammar=TAG, grammar_lazy=True, grammar_triggers=[hostile])
    with pytest.raises(UsageError, match=r"trigger_patterns: '\(x\|xx\)\+y': wanted expressions"):
        accepted(model, params, "x" * 80)


def test_structures_that_are_kept_have_a_size(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params_structure, "KEPT_BYTES", 250 * params_structure.BYTES_OF_CHAR)
    for letter in "abc":
        matcher_of(SamplingParams(grammar=f'root ::= "{letter * 90}"'), model.tokenizer)
    kept = [key.text for key in params_structure._STRUCTURES._latest]
    assert len(kept) == 2
    assert "aaa" not in "".join(map(str, kept))


def test_compiling_has_a_limit_of_time() -> None:
    begun, go_on = Event(), Event()

    def slow() -> int:
        begun.set()
        go_on.wait(30)
        return 1

    with pytest.raises(UsageError, match=r"grammar: wanted one that compiles within 0\.05 seconds"):
        within_seconds("grammar", slow, 0.05)
    assert begun.is_set()
    go_on.set()
    assert within_seconds("grammar", lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within_seconds("grammar", lambda: 1 // 0)
