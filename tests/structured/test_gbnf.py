"""GBNF: which texts a grammar takes, where a bad one is wrong, and what a hostile one costs."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.sampling import grammar
from graphml.sampling.structured.gbnf_rules import _cycle
from tests.looped import looped

ARITHMETIC = """# sums of words and numbers
root  ::= sum "\\n"
sum   ::= term ([-+] term)*
term  ::= [0-9]+ | [a-z] [a-z0-9]* |   # an operand
          "(" sum ")"
"""


TAKEN = [
    ('root ::= "a"*', ["", "a", "aaaa"], ["b", "ab"]),
    ('root ::= "ab"+ "c"?', ["ab", "abab", "ababc"], ["", "aab", "abcc", "abb"]),
    ('root ::= "a"{2} | "b"{1,2} | "c"{2,}', ["aa", "b", "bb", "cc", "ccccc"], ["a", "aaa", "bbb", "c", ""]),
    ('root ::= ("a" | "b" "c")? "d"', ["d", "ad", "bcd"], ["bd", "a", "abcd"]),
    ("root ::= [^a-c\\n] .", ["dx", "é\n", "😀😀"], ["ax", "\nx", "d", "ddd"]),
    ('root ::= [あ-ん]+ [\\u00e9] "\\x41\\U0001F600"', ["あいéA😀"], ["éA😀", "あeA😀", "アéA😀"]),
    ("root ::= [a-] [\\]\\-] [^\\]]", ["a]x", "--["], ["b]x", "a]]"]),
    ('root ::= x x\nx ::= | y\ny ::= "a"', ["", "a", "aa"], ["aaa"]),
    ('root ::= ws* "x"\nws ::= [ ]*', ["x", "   x"], ["x ", ""]),
    ('root ::= "a"{0,2001}', ["", "a" * 2500], ["b"]),
    ('\r\n\troot\t::=  "a"  # end\r\n\r\nb ::= "b" | [c]\r\n', ["a"], ["b"]),
    ('root ::= ("a" |\n  "b")\n', ["a", "b"], ["ab"]),
    ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),  # the later one counts, as in llama.cpp
    (ARITHMETIC, ["1\n", "a1+(b-2)\n", "((x))-y+3\n"], ["1", "+1\n", "(1\n", "a_b\n"]),
]


@looped(("text", "taken", "refused"), TAKEN, ids=[*map(str, range(len(TAKEN)))])
def test_takes_what_the_grammar_says(text: str, taken: list[str], refused: list[str]) -> None:
    matcher = grammar(text)
    assert [one for one in taken if not matcher.accepts(one)] == []
    assert [one for one in refused if matcher.accepts(one)] == []


WRONG = [
    ("", 1, 1, "rule 'root'"),
    ('a ::= "x"', 1, 10, "rule 'root'"),
    ('root ::= "a" b\nc ::= "d"', 1, 14, "'b' is not defined"),
    ('root ::= "a\nb', 1, 10, "no closing"),
    ("root ::= x\nx ::= [a", 2, 7, "no closing"),
    ('root ::= ("a" | ', 1, 17, "')'"),
    ('root := "a"', 1, 6, "'::='"),
    ('root ::= "\\q"', 1, 11, "escape"),
    ('root ::= "\\x4"', 1, 11, "hexadecimal"),
    ('root ::= "a" )', 1, 14, "end of rule"),
    ("root ::= *", 1, 10, "element before"),
    ('root ::= "a"{3,2}', 1, 13, "3 to 2"),
    ('root ::= "a"{2001}', 1, 13, "2000"),
    ('root ::= ("a"{1000} "b"){0,3}{0,1000}', 1, 30, "2000"),
    ('root ::= "a"{x}', 1, 14, "number of repetitions"),
    ('root ::= root "a" | "b"', 1, 1, "left recursion"),
    ('root ::= "x"\n\nb ::= c b "y" | "z"\nc ::= | "q"', 3, 1, "left recursion"),
    ('root ::= a\na ::= b a "x" | "y"\nb ::= c\nc ::= | c2\nc2 ::= [q]', 2, 1, "left recursion"),
    ("root ::= <think>", 1, 10, "token"),
    ("root ::= <[x]>", 1, 10, "id"),
    ("root ::= !a", 1, 11, "token"),
    ('root_a ::= "a"', 1, 5, "'::='"),
    ("root ::= " + "(" * 101 + '"a"' + ")" * 101, 1, 110, "nested"),
]


@looped(("text", "line", "column", "words"), WRONG, ids=[*map(str, range(len(WRONG)))])
def test_an_error_names_line_and_column(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(UsageError, match=f"line {line}, column {column}: ") as caught:
        grammar(text)
    assert words in str(caught.value)


HOSTILE = {
    "long": "root ::= " + '"a" ' * 300_000,
    "wide": "root ::= " + " ".join('"abcdefgh"{2000}' for _ in range(100)),
    "nullable levels": "root ::= a0\n"
    + "".join(f"a{i} ::= | a{i + 1} a{i + 1} a{i + 1}\n" for i in range(30))
    + 'a30 ::= | "x"',
    "ambiguous": "root ::= a a a a a a a a\na ::= | b b b b b b\n"
    'b ::= | c c c c c c\nc ::= | d d d d d\nd ::= | "x"',
    "deep": 'root ::= "(" root ")" | "x"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_ends_soon(name: str) -> None:
    began = time.process_time()
    with contextlib.suppress(UsageError):  # taken or refused, but soon
        grammar(HOSTILE[name]).accepts("(" * 3000 + "x" + ")" * 3000)
    assert time.process_time() - began < 20


def test_another_root_and_bad_arguments() -> None:
    text = 'root ::= "a"\nother ::= "b"'
    assert grammar(text, root="other").accepts("b")
    for bad in (None, 3, b"root ::= [a]"):
        with pytest.raises(UsageError):
            grammar(bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="vocab"):
        grammar(text, vocab=3)  # type: ignore[arg-type]


def test_a_text_may_need_more_states_than_a_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml.sampling.structured.gbnf_grammar.MAX_STATES", 60)
    counting = grammar('root ::= "a"{100} | "b"{100}')
    with pytest.raises(UsageError, match="states"):
        counting.accepts("a" * 100)
    first, second = grammar('root ::= "a"{50} | "b"{50}'), None
    second = first.copy()
    assert first.accepts("a" * 50)
    assert second.accepts("b" * 50)  # in a table of its own
    assert first.accepts("a" * 50)


@settings(max_examples=300, deadline=None)
@given(
    edges=st.integers(1, 7).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=3), min_size=n, max_size=n)
    )
)
def test_a_cycle_is_found_where_there_is_one(edges: list[list[int]]) -> None:
    """Left recursion: a rule that reaches itself without a character."""
    reached = [set(targets) for targets in edges]
    for _ in edges:
        reached = [targets.union(*(reached[to] for to in targets)) for targets in reached]
    cyclic = {node for node, targets in enumerate(reached) if node in targets}
    found = _cycle(edges)
    assert (found in cyclic) if cyclic else (found is None)
