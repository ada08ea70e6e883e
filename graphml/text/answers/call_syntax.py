"""How a family writes tool calls: one declaration, of which a grammar forces calls and a reader finds them.

Knows names and markers of calls, and that arguments have a syntax of their own; nothing of whole answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.grammar_rules import DIGITS, GrammarRules, joined, json_terminal
from graphml.text.answers.json_calls import json_arguments, json_calls
from graphml.text.answers.text_reader import Step, TextReader

CallReader: TypeAlias = Callable[[TextReader, CallSink], Step[None]]
"""Reads calls from behind the marker that opens them, to behind their end, or a MalformedError."""
_PLACES: Final = re.compile(r"\{(name|number|id)\}")
_TERMINALS: Final = {"number": DIGITS, "id": r"/[a-z0-9]{10}/"}


class Arguments(Protocol):
    """How the arguments of a call are written behind its name."""

    @property
    def opens(self) -> tuple[str, ...]:
        """The texts of which one begins them."""
        ...

    @property
    def nested(self) -> bool:
        """Whether names within objects are written as those of arguments are; else they are JSON."""
        ...

    def takes(self, key: str, others: Collection[str]) -> bool:
        """Whether what is written with this name of the schema, beside others, can be read again."""
        ...

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """Rules of arguments that follow a tool's schema."""
        ...

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Begin the call of this name and read its arguments."""
        ...

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """The arguments as text."""
        ...

    def form(self) -> str:
        """What arguments look like."""
        ...


@dataclass(frozen=True)
class JsonArguments:
    """Arguments as one JSON object."""

    nested = False

    @property
    def opens(self) -> tuple[str, ...]:
        """What arguments begin with."""
        return ("{",)

    def takes(self, key: str, others: Collection[str]) -> bool:
        """Any."""
        return True

    def grammar(self, rules: GrammarRules, schema: Mapping[str, Any]) -> str:
        """A JSON object that follows the schema."""
        return rules.new("arguments", json_terminal({"type": "object", **schema}))

    def read(self, reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
        """Read a JSON object."""
        yield from json_arguments(reader, calls, name, id)

    def written(self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> str:
        """A JSON object."""
        return json_text(arguments)

    def form(self) -> str:
        """An object of anything."""
        return "{...}"


JSON: Final = JsonArguments()


@dataclass(frozen=True)
class CallSyntax:
    """One call or several with `between`, from `begin` to `end`.

    A call is `before` with the name for {name}, then the arguments, `after`. {number} in `before` is that of
    the call, {id} ten letters and digits. alone: one call is written without begin and end. is_object: the
    call is a JSON object, whose keys may come in any order; keep_ids: an id in it is the call's.
    """

    before: str
    after: str
    begin: str = ""
    end: str = ""
    between: str = ""
    alone: bool = False
    is_object: bool = False
    keep_ids: bool = True
    arguments: Arguments = JSON

    @property
    def lead(self) -> str:
        """What comes before the name of a call."""
        return _PLACES.split(self.before, 1)[0].replace("{{", "{")

    @property
    def opening(self) -> str:
        """What comes before the name of the first call."""
        return self.begin + self.lead

    @property
    def _tail(self) -> list[str]:
        """What comes between the name and the arguments, parted by what may be there."""
        behind = self.before.partition("{name}")[2].strip()
        return _PLACES.split(behind)[::2] if behind else []

    def grammar(self, rules: GrammarRules, name: str, schema: Mapping[str, Any]) -> str:
        """The rule of a call of this tool."""
        parts = []
        for index, text in enumerate(_PLACES.split(self.before.replace("{name}", name))):
            if index % 2:
                parts.append(rules.new(text, _TERMINALS[text]))
            else:
                parts.append(rules.spell(text.replace("{{", "{").replace("}}", "}")))
        arguments = self.arguments.grammar(rules, schema)
        return rules.new("call", joined(*parts, arguments, rules.spell(self.after.format(name=name))))

    def reader(self, marker: str) -> CallReader:
        """Reads calls behind this marker, a part of `opening`."""
        before, separator, rest = self.opening.partition(marker)
        if not separator:
            raise ValueError(f"the marker {marker!r} is no part of {self.opening!r}")
        return self._read_objects if self.is_object else self._named(rest.strip(), wrapped=not before.strip())

    def _read_objects(self, reader: TextReader, calls: CallSink) -> Step[None]:
        yield from json_calls(reader, calls, self.keep_ids)
        closing = (self.after.replace("}}", "}").lstrip("}") + self.end.lstrip("]")).strip()
        if closing:
            yield from reader.closing(closing)

    def _named(self, rest: str, wrapped: bool) -> CallReader:
        """Reads calls behind a marker and this rest of the opening; wrapped: with what closes them."""
        after = self.after.replace("}}", "}")
        lead, between, after, end = (text.strip() for text in (self.lead, self.between, after, self.end))
        goes_on = tuple(filter(None, (between, lead))) if self.begin else ()

        def read(reader: TextReader, calls: CallSink) -> Step[None]:
            yield from _literal(reader, rest)
            while True:
                yield from self._read_call(reader, calls)
                if after and (wrapped or self.begin):
                    yield from reader.closing(after)
                calls.end()
                if not goes_on:
                    break
                yield from reader.space()
                next_text = yield from reader.optional(*goes_on)
                if not next_text:
                    break
                if next_text != lead:
                    yield from _literal(reader, lead)
            if end:
                yield from reader.closing(end, *goes_on)

        return read

    def _read_call(self, reader: TextReader, calls: CallSink) -> Step[None]:
        yield from reader.space()
        if self._tail:
            names = []
            for text in self._tail:
                names.append((yield from reader.within((text,))))
            name = names[0]
        else:
            parts: list[str] = []
            stop = yield from reader.whole_until(self.arguments.opens, parts.append)
            reader.at -= len(stop)
            name = "".join(parts)
        yield from self.arguments.read(reader, calls, name.strip())

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]], schemas: Mapping[str, Any]) -> str:
        """Calls as text, names with arguments. schemas: of the tools."""
        texts = [
            self._framed(name, self.arguments.written(arguments, schemas.get(name)), number)
            for number, (name, arguments) in enumerate(calls)
        ]
        text = self.between.join(texts)
        return text if self.alone and len(calls) == 1 else self.begin + text + self.end

    def form(self, name: str) -> str:
        """What a call looks like, whatever its arguments are."""
        return self._framed(name, self.arguments.form(), 0)

    def _framed(self, name: str, arguments: str, number: int) -> str:
        before = self.before.format(name=name, number=number, id=f"call{number:06}")
        return before + arguments + self.after.format(name=name)


def _literal(reader: TextReader, text: str) -> Step[None]:
    if text:
        yield from reader.space()
        yield from reader.literal(text)
