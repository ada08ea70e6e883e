"""Texts that do not fit, refused by their length before they are encoded, and bytes of many requests.

A token stands for a bounded number of characters, so a text of very many has more tokens than the context.
Knows a tokenizer and lengths; nothing of requests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.text.tokenizer import Tokenizer

CHARS_PER_TOKEN = 128
"""Most characters of a text for each token of the context, or as many as the longest token has.

Only texts that tokenizers leave out, such as runs of spaces, could have fitted.
"""


def check_fits(texts: list[str], tokenizer: Tokenizer, n_ctx: int) -> None:
    """ApiError 400 for the texts of one prompt where they are too long for that many tokens."""
    most, count = max(CHARS_PER_TOKEN, tokenizer.longest_token), sum(map(len, texts))
    if count > most * n_ctx:
        raise too_long(f"{count} characters", -(-count // most), n_ctx)


def too_long(size: str, n_tokens: int, n_ctx: int) -> ApiError:
    """What a prompt gets that leaves no room for an answer; n_tokens: as many or more."""
    return ApiError(
        400, f"request ({size}) exceeds the available context size ({n_ctx} tokens), try increasing it (-c)",
        "exceed_context_size_error", n_prompt_tokens=n_tokens, n_ctx=n_ctx,
    )  # fmt: skip


def json_chars(value: Any) -> int:
    """Characters of a text, or bytes of a value as JSON."""
    return len(value) if isinstance(value, str) else len(msgspec.json.encode(value))


def check_json_chars(value: Any, most: int, name: str) -> None:
    """ApiError 400 for a text, or a value as JSON, of more characters: before anything else walks it."""
    if (size := json_chars(value)) > most:
        raise wrong_field(name, f"at most {most} characters are wanted, got {size}")


class Held:
    """Bytes that several requests hold together, at most `most` but for a single one that is larger."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    def add(self, count: int) -> None:
        """Hold more, or fewer; ApiError 429 where that is too much now."""
        if count > 0 and self.count and self.count + count > self._most:
            raise ApiError(429, "too many large requests are answered; try again later")
        self.count += count


def check_chars(text: str, most: int, name: str) -> None:
    """ApiError 400 for a text of more characters than are encoded where no context bounds them."""
    if len(text) > most:
        raise wrong_field(name, f"at most {most} characters are wanted, got {len(text)}")
