"""Tool calls written as JSON: an object with the tool's name and its arguments, or an array of such.

Shared by many formats, whose names for the parts differ. Knows JSON; nothing of markers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graphml.text.answers.call_sink import CallSink, json_text
from graphml.text.answers.text_reader import CutError, Step, TextReader, fail, parsed

NAMES: Final = ("name", "tool_name", "function")
ARGUMENTS: Final = ("arguments", "parameters")
IDS: Final = ("id", "tool_call_id")


@dataclass
class _ParsedCall:
    name: str = ""
    id: str = ""
    arguments: str | None = None  # read before the name was known, or written as a string
    begun: bool = False


def json_calls(reader: TextReader, calls: CallSink, keep_ids: bool = True, only: bool = False) -> Step[None]:
    """Read one call or an array of calls. keep_ids: an id in the object is the call's. only: as of a call."""
    if (yield from reader.space()) != "[":
        yield from json_call(reader, calls, keep_ids, only)
        return
    yield from reader.literal("[")
    if (yield from reader.space()) == "]":
        yield from reader.literal("]")
        return
    while True:
        yield from json_call(reader, calls, keep_ids, only)
        yield from reader.space()
        if (yield from reader.literal("]", ",")) == "]":
            reader.set_mark(reader.at)
            return
        yield from reader.space()


def json_call(reader: TextReader, calls: CallSink, keep_ids: bool = True, only: bool = False) -> Step[None]:
    """Read one object as a call; its arguments are streamed where the name comes first.

    only: no other keys than those of a call, as where no marker says that it is one.
    """
    call = _ParsedCall()
    yield from _members(reader, calls, call, keep_ids, only)
    if not call.begun:
        if not call.name:
            fail("a call without a name")
        calls.begin(call.name, call.id)
        calls.piece(_object(call.arguments or "{}"))
    calls.end()


def _members(
    reader: TextReader, calls: CallSink, call: _ParsedCall, keep_ids: bool, only: bool
) -> Step[None]:
    yield from reader.space()
    yield from reader.literal("{")
    if (yield from reader.space()) == "}":
        fail("an empty object")
    while True:
        key = yield from reader.json_string()
        yield from reader.space()
        yield from reader.literal(":")
        first = yield from reader.space()
        if not first:
            raise CutError("a value is missing")
        if key == "function" and first == "{":
            yield from _members(reader, calls, call, keep_ids, only)
        elif key in NAMES and first == '"':
            call.name = yield from reader.json_string()
        elif key in IDS and first == '"':
            id = yield from reader.json_string()
            call.id = id if keep_ids else ""
        elif key in ARGUMENTS and not call.begun:
            yield from _arguments(reader, calls, call, first)
        elif only and key != "type":
            fail(f"a key {key}")
        else:
            yield from reader.json_value()
        yield from reader.space()
        if (yield from reader.literal("}", ",")) == "}":
            return


def _arguments(reader: TextReader, calls: CallSink, call: _ParsedCall, first: str) -> Step[None]:
    if call.name and first == "{":
        calls.begin(call.name, call.id)
        call.begun = True
        yield from reader.json_value(calls.piece)
        return
    call.arguments = yield from reader.json_value()


def _object(text: str) -> str:
    """Arguments as a JSON object, of an object or of a string that spells one; of null, an empty one."""
    value = parsed(text)
    if isinstance(value, str):
        value = parsed(value) if value.strip() else {}
    if value is None:
        value = {}
    if not isinstance(value, dict):
        fail("arguments that are no object")
    return json_text(value)


def json_arguments(reader: TextReader, calls: CallSink, name: str, id: str = "") -> Step[None]:
    """Read the arguments of a call whose name was read before, one JSON object, streamed."""
    if name not in calls.tools:
        fail(f"no tool {name}")
    if (yield from reader.space()) != "{":
        yield from reader.literal("{")
    calls.begin(name, id)
    yield from reader.json_value(calls.piece)
