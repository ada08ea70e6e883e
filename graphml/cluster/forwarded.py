"""What travels between the front of a server and its replicas: a request, its key, and the parts of a reply.

Knows values that can be sent; nothing of Ray.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.server.options.key_limits import KeyLimits

FORWARDED = frozenset({"accept", "content-type", "last-event-id", "user-agent", "x-conversation-id"})
"""Headers of requests that a replica reads; keys, hosts and origins are the front's."""


@dataclass(frozen=True)
class KeyOwner:
    """Whose request it is: a name without the key's text, the folder of what it keeps, and what it may do."""

    name: str
    folder: str
    limits: KeyLimits


@dataclass(frozen=True)
class ForwardedRequest:
    """A request that the front has let in."""

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    owner: KeyOwner | None = None
    id: str = ""


@dataclass(frozen=True)
class ReplyHead:
    """The first part of a reply; its body follows in parts of bytes. replica: whose reply it is."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    replica: str

    @property
    def is_stream(self) -> bool:
        """Whether its body are events or lines, which end as they begin: one by one."""
        kind = dict(self.headers).get(b"content-type", b"")
        return kind.startswith((b"text/event-stream", b"application/x-ndjson"))


@dataclass(frozen=True)
class ReplyEnd:
    """The last part: all tokens that the replica has read and generated for the owner's requests so far.

    Totals, so that those of a request whose client left count with the next one.
    """

    n_prompt: int = 0
    n_generated: int = 0
