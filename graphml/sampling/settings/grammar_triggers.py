"""The triggers of lazy grammars as values: words, patterns and tokens, as llama-server's requests have them.

Knows how they are written; nothing of matchers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from graphml.errors import UsageError
from graphml.options.argument_checks import items_of, token_id

KINDS: Final = ("token", "word", "pattern", "pattern_full")
"""By llama-server's number."""
MARKER, SPELLED = "marker", "spelled"
_WANTED: Final = "texts, token ids, or {'type': 0 to 3, 'value': text, 'token': id} as llama-server has them"


class Trigger(NamedTuple):
    """One of them. kind: of `KINDS`, or of two for callers in Python; token: of the kinds token and spelled.

    `marker`: a pattern behind which text that does not follow the structure stays free, as what looks like a
    tool call and is none. `spelled` is no trigger: the text that a control token has for patterns.
    """

    kind: str
    value: str = ""
    token: int = -1

    @property
    def pattern(self) -> str:
        """The regular expression that finds it in a text."""
        if self.kind == "word":
            return re.escape(self.value)
        return f"^{self.value}$" if self.kind == "pattern_full" else self.value


def checked_triggers(name: str, triggers: object) -> tuple[Trigger, ...]:
    """Triggers of a collection of texts (words), ids (tokens) and llama-server's objects; UsageError else."""
    return tuple(_trigger(name, trigger) for trigger in items_of(name, triggers, _WANTED))


def _trigger(name: str, trigger: Any) -> Trigger:
    if isinstance(trigger, Trigger):
        return trigger
    if isinstance(trigger, str) and trigger:
        return Trigger("word", trigger)
    if isinstance(trigger, int) and not isinstance(trigger, bool) and trigger >= 0:
        return Trigger("token", token=trigger)
    if isinstance(trigger, Mapping) and not trigger.keys() - {"type", "value", "token"}:
        kind = trigger.get("type")
        if isinstance(kind, int) and not isinstance(kind, bool) and 0 <= kind < len(KINDS):
            kind = KINDS[kind]
        if kind == "token":
            return Trigger("token", token=token_id(trigger.get("token")))
        value = trigger.get("value")
        if kind in KINDS and isinstance(value, str) and value:
            return Trigger(kind, value)
    raise UsageError(f"{name}: wanted {_WANTED}; got {trigger!r:.200}")
