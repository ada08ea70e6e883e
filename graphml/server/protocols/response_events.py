"""Events of `/v1/responses`: those of an answer while it is made, and of one that was kept.

Knows their forms and order; nothing of how answers are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from graphml.server.engine.service import new_id
from graphml.server.protocols.response_items import (
    COMPLETED,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)
from graphml.server.responses.event_stream import event
from graphml.text.answers import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)

Entries = list[dict[str, Any]]
Pieces = list[list[tuple[int, int]]]
"""Of each item the deltas of its text: characters, and entries of log-probabilities."""


class ResponseEvents:
    """Writes the events of one response, each with its number; `items` are those that have ended.

    pieces: in which their texts were sent. n_progress: events that reported the prompt's progress.
    """

    def __init__(self) -> None:
        self.items = list[dict[str, Any]]()
        self.pieces, self.n_progress = Pieces(), 0
        self._number = 0
        self._open: dict[str, Any] = {}  # the item that is being written
        self._text, self._logprobs = "", Entries()

    def send(self, kind: str, **data: Any) -> bytes:
        """An event of this kind."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **data}, kind)

    def begun(self, shown: dict[str, Any]) -> list[bytes]:
        """The events before any item. shown: the response as it is then."""
        return [self.send(f"response.{phase}", response=shown) for phase in ("created", "in_progress")]

    def progress(self, shown: dict[str, Any], **more: Any) -> bytes:
        """An event before any item that has more than the response."""
        self.n_progress += 1
        return self.send("response.in_progress", response=shown, **more)

    def written(self, event: Event, logprobs: Entries, more: dict[str, Any]) -> list[bytes]:
        """A part of the answer. logprobs: entries of a text's tokens; more: what its event has besides."""
        events: list[bytes] = []
        if isinstance(event, ContentDelta | ReasoningDelta):
            kind = "message" if isinstance(event, ContentDelta) else "reasoning"
            if self._open.get("type") != kind:
                make_item, prefix = (message_item, "msg_") if kind == "message" else (reasoning_item, "rs_")
                events += self.closed() + self._item_begun(make_item(new_id(prefix), None, "in_progress"))
            events.append(self._delta(event.text, logprobs, more))
        elif isinstance(event, ToolCallBegin):
            events += self.closed()
            events += self._item_begun(call_item(new_id("fc_"), event.id, event.name, "", "in_progress"))
        elif isinstance(event, ToolCallDelta):
            events.append(self._delta(event.text, [], {}))
        elif isinstance(event, ToolCallEnd):
            events += self.closed(COMPLETED if event.ok else "incomplete")
        return events

    def closed(self, status: str = COMPLETED) -> list[bytes]:
        """End the item that is being written, if there is one. status: of a call, which may break off."""
        if not self._open:
            return []
        item, text, place = self._open, self._text, self._place()
        events: list[bytes] = []
        if item["type"] == "message":
            done, at, scores = message_item(item["id"], text, logprobs=self._logprobs), place, self._logprobs
            events.append(self.send("response.output_text.done", **at, text=text, logprobs=scores))
            events.append(self.send("response.content_part.done", **at, part=text_part(text, scores)))
        elif item["type"] == "reasoning":
            done = reasoning_item(item["id"], text)
            events.append(self.send("response.reasoning_text.done", **place, text=text))
        else:
            done = call_item(item["id"], item["call_id"], item["name"], text, status)
            kind = "response.function_call_arguments.done"
            events.append(self.send(kind, **place, name=item["name"], arguments=text))
        events.append(self.send("response.output_item.done", output_index=len(self.items), item=done))
        self.items.append(done)
        self._open = {}
        return events

    def empty_message(self) -> list[bytes]:
        """A message without a text, of an answer that has nothing."""
        return self._item_begun(message_item(new_id("msg_"), None, "in_progress")) + self.closed()

    def replayed(
        self, response: dict[str, Any], pieces: Pieces | None = None, n_progress: int = 0, after: int = -1
    ) -> Iterator[bytes]:
        """Events of a response that has ended, with the numbers that they had, but for progress.

        pieces, n_progress: as of the writer of its stream; None: it had none, and each text is one event.
        after: those with larger numbers.
        """
        before = {**response, "status": "in_progress", "output": [], "incomplete_details": None}
        begun = self.begun({name: value for name, value in before.items() if name not in ENDS})
        self._number += n_progress
        events = chain(enumerate(begun), enumerate(self._ended(response, pieces), self._number))
        yield from (event for number, event in events if number > after)

    def _ended(self, response: dict[str, Any], pieces: Pieces | None) -> Iterator[bytes]:
        """The events of the items of a response, and of its end."""
        for number, item in enumerate(response["output"]):
            kind, id = item["type"], item["id"]
            if kind == "function_call":
                begun = call_item(id, item["call_id"], item["name"], "", "in_progress")
                yield from self._item_begun(begun)
                text, scores = item["arguments"], Entries()
            else:
                part, make_item = item["content"][0], message_item if kind == "message" else reasoning_item
                yield from self._item_begun(make_item(id, None, "in_progress"))
                text, scores = part["text"], part.get("logprobs", [])
            at = scored = 0
            for n_chars, n_scores in [(len(text), len(scores))] if pieces is None else pieces[number]:
                yield self._delta(text[at : at + n_chars], scores[scored : scored + n_scores], {})
                at, scored = at + n_chars, scored + n_scores
            yield from self.closed(item["status"])
        yield self.send(f"response.{response['status']}", response=response)

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self._open["id"], "output_index": len(self.items)}
        return place if self._open["type"] == "function_call" else {**place, "content_index": 0}

    def _item_begun(self, item: dict[str, Any]) -> list[bytes]:
        self._open, self._text, self._logprobs = item, "", Entries()
        self.pieces.append([])
        events = [self.send("response.output_item.added", output_index=len(self.items), item=item)]
        if item["type"] == "message":
            events.append(self.send("response.content_part.added", **self._place(), part=text_part("")))
        return events

    def _delta(self, text: str, logprobs: Entries, more: dict[str, Any]) -> bytes:
        self._text += text
        self._logprobs += logprobs
        self.pieces[-1].append((len(text), len(logprobs)))
        if self._open["type"] == "message":
            more = {"logprobs": logprobs, **more}
        names = {"message": "output_text", "reasoning": "reasoning_text"}
        kind = names.get(self._open["type"], "function_call_arguments")
        return self.send(f"response.{kind}.delta", **self._place(), delta=text, **more)


ENDS = ("usage", "completed_at", "timings")
"""What a response has only at its end."""
