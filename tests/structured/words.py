"""A small vocabulary, and matchers by brute force."""

from __future__ import annotations

from graphml.sampling.structured import Matcher, TokenBytes

END = 0
PIECES = (
    b"<end>",
    *(bytes([one]) for one in range(256)),
    b"ab",
    b"abc",
    b"aa",
    b"ba",
    b"a\n",
    b'"a',
    b'":',
    b'{"',
    b"12",
    b"1,",
    b"}}",
    b"[1",
    "é".encode(),
    "あ".encode(),
    "あ".encode()[:2],
    b"\x82a",
    "aé".encode()[:2],
    b"",
    b"a\x00",
    "😀".encode()[1:],
    b"true",
    b" true",
    b"<think>",
    b"</think>",
)


def _token_of(text: str) -> int | None:
    return PIECES.index(text.encode()) if text.encode() in PIECES else None


WORDS = TokenBytes(PIECES, frozenset([END]), frozenset([END]), _token_of)


def by_bytes(matcher: Matcher, data: bytes) -> Matcher | None:
    """The matcher after these bytes, one token each; None where one of them is not allowed."""
    after = matcher.copy()
    for byte in data:
        token = WORDS.of_byte[byte]
        assert token is not None
        if not after.allows(token):
            return None
        after.accept(token)
    return after
