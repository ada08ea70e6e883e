"""Forms of an assistant's calls in messages: a template is tried once for the form in which it shows them.

Templates want arguments as a mapping or as text, a content that is there or not, one call in a turn, or ids
of nine letters; some leave out what has another form, without an error. Knows messages and what renders
them; nothing of tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphml.api.tools import Tool
from graphml.errors import TemplateError
from graphml.text.chat_template import OverLimitsError
from graphml.text.messages import Message

Render = Callable[[Sequence[Message], Sequence[Tool]], str]
Write = Callable[[Message], str | None]
"""From a message with calls to the text that the model wrote; None where that is not known."""
N_ID: Final = 9
LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PROBED: Final = Tool("probe", "Probe.", {"type": "object", "properties": {"key": {"type": "string"}}})
VALUES: Final = ("PROBE-A", "PROBE-B")
RESULTS: Final = ("PROBE-C", "PROBE-D")


@dataclass(frozen=True)
class CallForm:
    """How calls stand in messages.

    turns: "together", "single" (each call is a turn with its result), "written" (as the assistant's text) or
    "written beside text" (where the assistant says something besides).
    as_text: arguments are JSON text. content: of an assistant who says nothing besides: "missing", None, "".
    short_ids: ids have nine letters and digits.
    """

    turns: str = "together"
    as_text: bool = False
    content: str | None = "missing"
    short_ids: bool = False

    def formed(self, messages: Sequence[Message], write: Write) -> list[Message] | None:
        """The messages in this form; None where their calls cannot be written so."""
        if self.short_ids:
            messages = [_with_short_ids(message) for message in messages]
        if self.turns == "single":
            messages = list(_single(messages))
        formed: list[Message] = []
        for message in messages:
            written = self.turns == "written" or (self.turns == "written beside text" and message["content"])
            if not (written and message.get("tool_calls")):
                formed.append(self._with_calls(message))
                continue
            text = write(message)
            if text is None:
                return None
            formed.append({**_without(message, "tool_calls"), "content": text})
        return formed

    def _with_calls(self, message: Message) -> Message:
        calls = message.get("tool_calls")
        if not calls:
            return message
        formed = dict(message)
        if not formed["content"]:
            formed["content"] = self.content
            if self.content == "missing":
                del formed["content"]
        if self.as_text:
            formed["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _text(call["function"]["arguments"])}}
                for call in calls
            ]
        return formed


FORMS: Final = tuple(
    CallForm(turns, as_text, content, short_ids)
    for turns in ("together", "single", "written beside text", "written")
    for short_ids in (False, True)
    for as_text in ((False,) if turns == "written" else (False, True))
    for content in (("",) if turns == "written" else ("missing", None, ""))
)


def forms_of(source: str, render: Render, write: Write) -> tuple[CallForm, ...]:
    """The forms of calls by which a template can be tried, first the one in which it shows most of them.

    render: the text of messages and tools by this template; TemplateError where it fails, OverLimitsError
    where it meets its limits: it is not tried again.
    """
    best = _KNOWN.get(source)
    if best is None:
        best = _best(render, write)
        if len(_KNOWN) >= MOST_KNOWN:  # another thread may do so, too
            _KNOWN.clear()
        _KNOWN[source] = best
    return best, *(form for form in FORMS if form != best)


_KNOWN: dict[str, CallForm] = {}
MOST_KNOWN: Final = 64


def _best(render: Render, write: Write) -> CallForm:
    """The form in which a template shows most values of calls and results; the first one of equal ones."""
    probes = [list(_turn("", VALUES)), list(_turn("", VALUES[:1])), list(_turn("PROBE", VALUES[:1]))]
    best, most = FORMS[0], 0
    for form in FORMS:
        n_shown = 0
        for messages in probes:
            formed = form.formed(messages, write)
            try:
                text = "" if formed is None else render(formed, (PROBED,))
            except OverLimitsError:
                raise
            except TemplateError:
                continue
            n_shown += sum(value in text for value in (*VALUES, *RESULTS))
        if n_shown > most:
            best, most = form, n_shown
        if most == 2 * (len(VALUES) + 1 + 1):  # all of them
            break
    return best


def _turn(said: str, values: Sequence[str]) -> Iterator[Message]:
    """A question, calls with these values, and their results."""
    ids = [f"call_{index}" for index in range(len(values))]
    yield {"role": "user", "content": "PROBE"}
    calls = [
        {"id": id, "type": "function", "function": {"name": PROBED.name, "arguments": {"key": value}}}
        for id, value in zip(ids, values, strict=True)
    ]
    yield {"role": "assistant", "content": said, "tool_calls": calls}
    for id, result in zip(ids, RESULTS, strict=False):
        yield {"role": "tool", "content": result, "tool_call_id": id, "name": PROBED.name}


def _single(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call as a turn of its own with its results, by its id, else by its place.

    Calls of one id have its results in order, the last of them all that are left.
    """
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            yield message
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index]["role"] == "tool":
            results.append(messages[index])
            index += 1
        left = Counter(call["id"] for call in calls)
        named = any(result.get("tool_call_id") in left for result in results)
        waiting: dict[Any, list[Message]] = {}
        for place, result in enumerate(results):
            waiting.setdefault(result.get("tool_call_id") if named else place, []).append(result)
        for place, call in enumerate(calls):
            first = message if place == 0 else {"role": "assistant", "content": ""}
            yield {**first, "tool_calls": [call]}
            left[call["id"]] -= 1
            own = waiting.pop(call["id"] if named else place, [])
            if named and left[call["id"]]:
                waiting[call["id"]], own = own[1:], own[:1]
            yield from own
        yield from (result for strays in waiting.values() for result in strays)


def _with_short_ids(message: Message) -> Message:
    formed = dict(message)
    if "tool_call_id" in message:
        formed["tool_call_id"] = short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        formed["tool_calls"] = [{**call, "id": short_id(call["id"])} for call in message["tool_calls"]]
    return formed


def short_id(id: str) -> str:
    """Nine letters and digits for an id, always the same; one that has this form is as it is."""
    if len(id) == N_ID and id.isascii() and id.isalnum():
        return id
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest()[:8], "little")
    letters = ""
    for _ in range(N_ID):
        number, digit = divmod(number, len(LETTERS))
        letters += LETTERS[digit]
    return letters


def _without(message: Mapping[str, Any], name: str) -> Message:
    return {key: value for key, value in message.items() if key != name}


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
