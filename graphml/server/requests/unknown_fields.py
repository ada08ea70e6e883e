"""Fields of a request that an endpoint does not have: named in a header of the response, and once in the log.

They are ignored, as llama-server does; OpenAI's servers refuse them. Knows names; nothing of their meaning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from msgspec import Struct
from starlette.types import Message, Send

from graphml.errors import similar

LOG = logging.getLogger(__name__)
HEADER = b"x-graphml-unknown-fields"
MOST_SHOWN, MOST_LOGGED, LEAST_NEAR = 16, 256, 0.75
_NAME = re.compile(r"[\w.\-]{1,64}", re.ASCII)


def unknown_fields(
    body: Mapping[str, Any], kind: type[Struct], within: Mapping[str, type[Struct]]
) -> tuple[str, ...]:
    """The names in a body that a kind of request does not have, as far as they are names and not null.

    within: field -> kind of the object in it, whose unknown names are "field.name".
    """
    unknown = [name for name in body if name not in kind.__struct_encode_fields__ and body[name] is not None]
    for field, inner in within.items():
        if isinstance(content := body.get(field), dict):
            unknown += [f"{field}.{name}" for name in unknown_fields(content, inner, {})]
    return tuple(name for name in unknown if _NAME.fullmatch(name))[:MOST_SHOWN]


def naming(names: Sequence[str], send: Send) -> Send:
    """A `send` whose response has the header with these names."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {
                **message,
                "headers": [*message.get("headers", ()), (HEADER, ", ".join(names).encode())],
            }
        await send(message)

    return sent


class LoggedOnce:
    """Which names the log has already, up to a number of them: requests may have any."""

    def __init__(self) -> None:
        self._seen, self._lock = set[tuple[str, str]](), Lock()

    def log(self, path: str, names: Sequence[str], kind: type[Struct]) -> None:
        """A line for each name that is new at this path."""
        with self._lock:
            new = [name for name in names if (path, name) not in self._seen]
            new = new[: MOST_LOGGED - len(self._seen)]
            self._seen.update((path, name) for name in new)
        fields = kind.__struct_encode_fields__
        for name in new:
            near = "".join(f" Did you mean {ours!r}?" for ours in similar(name, fields, 1, LEAST_NEAR))
            LOG.warning("%s: unknown field %r is ignored.%s", path, name, near)
