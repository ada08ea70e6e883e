"""GBNF, llama.cpp's notation of grammars: its text to rules, with the line and column of every error.

Follows `grammars/README.md` and `src/llama-grammar.cpp` of llama.cpp: the same repetitions become the same
rules, the same texts are refused. Grammars come from other people: length, nesting, repetitions and the
number of elements are limited. Knows nothing of vocabularies, except what a function tells it about `<name>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from graphml.errors import UsageError
from graphml.options.argument_checks import text_of
from graphml.sampling.structured.gbnf_rules import (
    LAST_VALUE,
    Alternative,
    Element,
    OneToken,
    RuleReference,
    Rules,
    character_set,
    left_recursive,
)

MAX_CHARACTERS: Final = 1 << 20
MAX_NESTING: Final = 100
MAX_REPETITIONS: Final = 2000
MAX_ELEMENTS: Final = 1 << 19

_SPACE: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_OR_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME: Final = re.compile(r"[a-zA-Z0-9-]+")
_INTEGER: Final = re.compile(r"[0-9]{1,9}(?![0-9])")
_HEXADECIMAL: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}

TokenOf = Callable[[str], int | None]
"""The id of the one token that a text such as <think> spells, or None."""


def parse_gbnf(text: str, root: str = "root", token_of: TokenOf | None = None) -> Rules:
    """Parse a grammar; `root` is the rule where a text begins.

    token_of: finds the token of an element such as `<think>`; without it only ids, `<[1000]>`, are known.
    UsageError with line and column for a grammar that llama.cpp would refuse or that is over a limit.
    """
    text_of("grammar", text)
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"grammar: at most {MAX_CHARACTERS} characters are wanted, it has {len(text)}")
    return _Parser(text, token_of).parse(root)


class _Parser:
    """One text on its way to rules; `at` is the offset of what comes next."""

    def __init__(self, text: str, token_of: TokenOf | None) -> None:
        self.text, self.token_of = text, token_of
        self.at = 0
        self.n_elements = 0
        self.rules = Rules()
        self.numbers: dict[str, int] = {}

    def parse(self, root: str) -> Rules:
        self.skip(lines=True)
        while self.at < len(self.text):
            self.rule()
        if root not in self.numbers or self.rules.alternatives[self.numbers[root]] is None:
            self.fail(f"a rule {root!r} is wanted, where the text begins", len(self.text))
        for rule, alternatives in enumerate(self.rules.alternatives):
            if alternatives is None:
                self.fail(f"rule {self.rules.names[rule]!r} is not defined", self.rules.offsets[rule])
        self.rules.root = self.numbers[root]
        looping = left_recursive(self.rules)
        if looping is not None:
            name = self.rules.names[looping]
            self.fail(f"rule {name!r} begins with itself (left recursion)", self.rules.offsets[looping])
        return self.rules

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        """Raise with the line and column (from 1) of an offset, by default of what comes next."""
        before = self.text[: self.at if at is None else at]
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise UsageError(f"grammar, line {line}, column {column}: {what}")

    def next(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def shown(self) -> str:
        return repr(self.next(16)) if self.at < len(self.text) else "the end of the grammar"

    def skip(self, lines: bool) -> None:
        space = (_SPACE_OR_LINES if lines else _SPACE).match(self.text, self.at)
        assert space is not None
        self.at = space.end()

    def number_of(self, name: str, at: int) -> int:
        if name not in self.numbers:
            self.numbers[name] = self.rules.add(name, at)
        return self.numbers[name]

    def name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.fail(f"wanted a rule's name (letters, digits, '-'), got {self.shown()}")
        self.at = match.end()
        return match.group()

    def rule(self) -> None:
        start = self.at
        name = self.name()
        self.skip(lines=False)
        if self.next(3) != "::=":
            self.fail(f"wanted '::=' after the name {name!r}, got {self.shown()}")
        self.at += 3
        self.skip(lines=True)
        rule = self.number_of(name, start)
        self.rules.offsets[rule] = start
        self.rules.alternatives[rule] = self.alternatives(name, 0)
        if self.at < len(self.text) and self.next() not in "\r\n":
            self.fail(f"wanted an element, '|' or the end of rule {name!r}, got {self.shown()}")
        self.skip(lines=True)

    def alternatives(self, name: str, depth: int) -> list[Alternative]:
        alternatives = [self.sequence(name, depth)]
        while self.next() == "|":
            self.at += 1
            self.skip(lines=True)
            alternatives.append(self.sequence(name, depth))
        return alternatives

    def sequence(self, name: str, depth: int) -> Alternative:
        """Elements up to the end of an alternative; `last` is where a repetition's operand begins."""
        items: Alternative = []
        last, weight = 0, 1  # weight: rules that the operand stands for
        while self.at < len(self.text):
            start, sign = self.at, self.next()
            if sign in "*+?{":
                least, most = self.times(depth)
                self.repeat(items, last, weight, least, most, name, start)
                weight *= max(1, least if most is None else (most or least))
                continue
            before = len(self.rules.names)
            elements = self.operand(sign, name, depth)
            if elements is None:
                break
            self.counted(len(elements), start)
            weight = max(1, len(self.rules.names) - before) if sign == "(" else 1
            last = len(items)
            items += elements
            self.skip(lines=depth > 0)
        return items

    def operand(self, sign: str, name: str, depth: int) -> list[Element] | None:
        """One literal, class, token, group, reference or dot; None where the alternative ends."""
        if sign == '"':
            return self.literal()
        if sign == "[":
            return self.character_class()
        if sign in "<!":
            return [self.token()]
        if sign == "(":
            return [self.group(name, depth)]
        if sign == ".":
            self.at += 1
            return [character_set([(0, LAST_VALUE)])]
        if _NAME.match(sign):
            start = self.at
            return [RuleReference(self.number_of(self.name(), start))]
        return None

    def group(self, name: str, depth: int) -> RuleReference:
        start = self.at
        if depth >= MAX_NESTING:
            self.fail(f"groups are nested more than {MAX_NESTING} deep")
        self.at += 1
        self.skip(lines=True)
        rule = self.rules.add(name, start)
        self.rules.alternatives[rule] = self.alternatives(name, depth + 1)
        if self.next() != ")":
            self.fail(f"wanted an element, '|' or ')', got {self.shown()}")
        self.at += 1
        return RuleReference(rule)

    def literal(self) -> list[Element]:
        start = self.at
        self.at += 1
        characters: list[Element] = []
        while self.next() != '"':
            if self.at >= len(self.text):
                self.fail("this literal has no closing '\"'", start)
            value = self.character()
            characters.append(character_set([(value, value)]))
        self.at += 1
        return characters

    def character_class(self) -> list[Element]:
        start = self.at
        self.at += 1
        negated = self.next() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while self.next() != "]":
            if self.at >= len(self.text):
                self.fail("this character class has no closing ']'", start)
            low = high = self.character()
            if self.next() == "-" and self.next(2) != "-]":
                self.at += 1
                high = self.character()
            ranges.append((low, high))
        self.at += 1
        return [character_set(ranges, negated)] if ranges else []

    def character(self) -> int:
        if self.at >= len(self.text):
            self.fail("the grammar ends inside a literal or class")
        sign = self.next()
        if sign != "\\":
            if sign == "\0":
                self.fail("a zero character is not possible in a grammar")
            self.at += 1
            return ord(sign)
        kind = self.next(2)[1:]
        if kind in _HEXADECIMAL:
            digits = self.text[self.at + 2 : self.at + 2 + _HEXADECIMAL[kind]]
            if not re.fullmatch(f"[0-9a-fA-F]{{{_HEXADECIMAL[kind]}}}", digits):
                self.fail(f"wanted {_HEXADECIMAL[kind]} hexadecimal digits after \\{kind}, got {digits!r}")
            self.at += 2 + len(digits)
            return int(digits, 16)
        if kind not in _ESCAPES or not kind:
            self.fail(f'unknown escape \\{kind}; known: \\x \\u \\U \\t \\r \\n \\\\ \\" \\[ \\] \\-')
        self.at += 2
        return ord(_ESCAPES[kind])

    def token(self) -> OneToken:
        negated = self.next() == "!"
        self.at += negated
        start = self.at
        if self.next() != "<":
            self.fail(f"wanted a token such as <[1000]> or <think> after '!', got {self.shown()}")
        end = self.text.find(">", start)
        if end < 0:
            self.fail("this token has no closing '>'", start)
        spelled = self.text[start : end + 1]
        self.at = end + 1
        by_id = re.fullmatch(r"<\[([0-9]{1,9})\]>", spelled)
        if by_id is not None:
            return OneToken(int(by_id.group(1)), negated)
        if spelled.startswith("<["):
            self.fail(f"wanted a token's id such as <[1000]>, got {spelled[:64]!r}", start)
        token = self.token_of(spelled) if self.token_of is not None else None
        if token is None:
            self.fail(f"{spelled[:64]!r} is not exactly one token of the vocabulary", start)
        return OneToken(token, negated)

    def times(self, depth: int) -> tuple[int, int | None]:
        """Least and most times of a repetition; None: no upper limit, as in llama.cpp above 2000 too."""
        start, sign = self.at, self.next()
        self.at += 1
        self.skip(lines=depth > 0)
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        least = self.integer(depth)
        most: int | None = least
        if self.next() == ",":
            self.at += 1
            self.skip(lines=depth > 0)
            most = None if self.next() == "}" else self.integer(depth)
        if self.next() != "}":
            self.fail(f"wanted ',' or '}}' of a repetition, got {self.shown()}")
        self.at += 1
        self.skip(lines=depth > 0)
        if least > MAX_REPETITIONS:
            self.fail(f"at most {MAX_REPETITIONS} repetitions are possible, got {least}", start)
        if most is not None and most < least:
            self.fail(f"a repetition from {least} to {most} times is not possible", start)
        return least, None if most is not None and most > MAX_REPETITIONS else most

    def integer(self, depth: int) -> int:
        match = _INTEGER.match(self.text, self.at)
        if match is None:
            self.fail(f"wanted a number of repetitions, at most {MAX_REPETITIONS}, got {self.shown()}")
        self.at = match.end()
        self.skip(lines=depth > 0)
        return int(match.group())

    def repeat(
        self, items: Alternative, last: int, weight: int, least: int, most: int | None, name: str, start: int
    ) -> None:
        """Replace items[last:] by copies and rules: S' ::= S S' | for no limit, else a chain of such."""
        operand = items[last:]
        if not operand:
            self.fail("a repetition wants an element before it", start)
        total = max(1, least if most is None else (most or least))
        if weight * total > MAX_REPETITIONS:
            self.fail(f"repetitions inside repetitions come to more than {MAX_REPETITIONS} rules", start)
        n_rules = 1 if most is None else most - least
        self.counted(len(operand) * least + (len(operand) + 1) * n_rules, start)
        items[last:] = operand * least
        rule: int | None = None
        for _ in range(n_rules):
            number = self.rules.add(name, start)
            following = number if most is None else rule
            tail: list[Element] = [] if following is None else [RuleReference(following)]
            self.rules.alternatives[number] = [[*operand, *tail], []]
            rule = number
        if rule is not None:
            items.append(RuleReference(rule))

    def counted(self, n: int, start: int) -> None:
        self.n_elements += n
        if self.n_elements > MAX_ELEMENTS:
            self.fail(f"the grammar has more than {MAX_ELEMENTS} elements, repetitions written out", start)
