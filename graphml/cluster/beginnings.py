"""What a request's body says of where it is best computed: how its prompt begins, as it is written.

Knows the names of bodies' fields; nothing of engines.
"""

from __future__ import annotations

from typing import Any

import msgspec

from graphml.cluster.prefix_routing import BLOCK, MOST_BLOCKS


class Beginning(msgspec.Struct):
    """Of a request's body what says where it is computed, and how many answers it wants.

    What a prompt begins with is as it is written: tools and system first. Texts are not decoded.
    """

    tools: msgspec.Raw = msgspec.Raw()
    functions: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    n: Any = 1
    previous_response_id: Any = None

    @classmethod
    def of(cls, body: bytes) -> Beginning:
        """That of a body; an empty one where it is no JSON object: who answers says what is wrong."""
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls()

    @property
    def text(self) -> str:
        """What the prompt begins with."""
        parts = (
            self.tools, self.functions, self.system, self.instructions, self.messages, self.prompt,
            self.input, self.content,
        )  # fmt: skip
        text = b"\n".join(bytes(part) for part in parts if part)
        return text[: BLOCK * MOST_BLOCKS].decode("utf-8", "replace")
