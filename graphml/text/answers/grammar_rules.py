"""Rules of a Lark grammar of llguidance, as formats of answers state them.

What may come in any order is a parametric rule: a bit for each member tells which have come. Knows
llguidance's Lark; nothing of formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

ANYTHING, SPACE, DIGITS = r"/(.|\n)*/", r"/[ \n]{0,8}/", r"/[0-9]{1,4}/"
NAME: Final = r"/[A-Za-z0-9_.\-]{1,64}/"
MOST_COUNTED: Final = 64
"""So many members of an object have a bit of their own; further ones may come again and again."""
MOST_BOUND: Final = 10_000
"""Longer texts are as if no length were said."""
_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_META: Final = re.compile(r"[\\^$.|?*+()\[\]{}/&~#-]")

Schema: TypeAlias = Any  # bool or mapping, as json.loads gives it
Spell: TypeAlias = Callable[[str], str]
"""A text as terminals of the grammar; what is a control token is named by its id."""


def joined(*parts: str) -> str:
    """Parts in a sequence, the empty ones left out."""
    return " ".join(part for part in parts if part)


def without(stop: str, expression: str = ANYTHING) -> str:
    """A terminal: what follows an expression and has no match of another one in it."""
    return f"{expression} & ~/(.|\\n)*{stop}(.|\\n)*/"


def text_bounds(schema: Mapping[str, Any]) -> str:
    """The expression of a text of the length that a schema says."""
    low, high = (schema.get(word) for word in ("minLength", "maxLength"))
    low, high = (
        bound if isinstance(bound, int) and 0 <= bound <= MOST_BOUND else None for bound in (low, high)
    )
    return ANYTHING if low is high is None else rf"/(.|\n){{{low or 0},{'' if high is None else high}}}/"


def escaped(text: str) -> str:
    """A text as a part of a regular expression between slashes."""
    return _META.sub(lambda match: "\\" + match.group(), text).replace("\n", r"\n")


def json_terminal(schema: Schema) -> str:
    """A JSON value; how it is spaced is not the schema's to say."""
    stated = schema if isinstance(schema, Mapping) else {}
    return "%json " + json.dumps({**stated, "x-guidance": _COMPACT})


class GrammarRules:
    """Rules of one grammar, numbered."""

    def __init__(self, spell: Spell) -> None:
        self.spell = spell
        self._rules: list[str] = []
        self._of_key: dict[str, str] = {}
        self._n_reserved = 0

    def add(self, name: str, body: str) -> str:
        """A rule; returns its name."""
        self._rules.append(f"{name}: {body}")
        return name

    def new(self, kind: str, body: str) -> str:
        """A rule with a number; returns its name."""
        return self.add(self.reserved(kind), body)

    def reserved(self, kind: str) -> str:
        """A new name for a rule that refers to itself."""
        self._n_reserved += 1
        return f"{kind}_{self._n_reserved}"

    def shared(self, kind: str, key: str, body: Callable[[], str]) -> str:
        """The rule of this key, which is made once; its body may refer to it."""
        if key not in self._of_key:
            self._of_key[key] = name = self.reserved(kind)
            self.add(name, body())
        return self._of_key[key]

    def is_token(self, text: str) -> bool:
        """Whether control tokens are needed to spell this text, which no other text has in it."""
        return "<[" in self.spell(text)

    def until(self, stop: str, expression: str = ANYTHING) -> str:
        """Any text up to this one and over it; expression: what the text before it follows."""
        if self.is_token(stop):
            return joined(self.new("text", expression), self.spell(stop))
        return self.up_to(f"/{escaped(stop)}/", expression)

    def up_to(self, stop: str, expression: str = ANYTHING) -> str:
        """Any text up to the first match of an expression and over it."""
        name = self.reserved("text")
        self._rules.append(f"{name}[suffix={stop}]: {expression}")
        return name

    def any_order(
        self, kind: str, members: Sequence[tuple[str, bool]], separator: str = "", others: str = ""
    ) -> str:
        """Members in any order, each at most once, with the required ones.

        members: the body and whether it is required. separator: a terminal between two. others: the body
        of a member of any other name, which may come again.
        """
        if not members:
            more = f" ({joined(separator, others)})*"
            return f"({others}{more})?" if others else ""
        ordered = sorted(members, key=lambda member: not member[1])
        required = min(sum(needed for _, needed in ordered), MOST_COUNTED)
        end = f"%if is_ones([0:{required}])" if required else ""
        rest = self._members(kind, ordered, others, end, separator)
        first = rest if not separator else self._members(kind, ordered, others, end, "", rest)
        return f"{first}::0x0"

    def _members(
        self,
        kind: str,
        members: Sequence[tuple[str, bool]],
        others: str,
        end: str,
        separator: str,
        then: str = "",
    ) -> str:
        name = self.reserved(kind)
        then = then or name
        ways = [f'"" {end}'.strip()]
        for bit, (body, _) in enumerate(members):
            counted = bit < MOST_COUNTED
            after = f"{then}::set_bit({bit}) %if bit_clear({bit})" if counted else f"{then}::_"
            ways.append(joined(separator, body, after))
        if others:
            ways.append(joined(separator, others, f"{then}::_"))
        self._rules.append(f"{name}::_: " + "\n  | ".join(ways))
        return name

    def text(self, start: str) -> str:
        """The grammar of this start."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def lark_spelling(text: str, controls: Iterable[tuple[str, int]]) -> str:
    """A text as terminals: controls, texts and their ids, as `<[id]>`, what is between as a literal."""
    for control, id in controls:
        if control and control in text:
            before, _, after = text.partition(control)
            rest = dict(controls)
            parts = (lark_spelling(before, rest.items()), f"<[{id}]>", lark_spelling(after, rest.items()))
            return joined(*parts)
    return json.dumps(text, ensure_ascii=False) if text else ""
