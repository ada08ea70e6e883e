"""Writes GGUF files byte by byte, so that tests can also write wrong ones."""

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text: str | bytes, length: int | None = None, version: int = 3) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I" if version == 1 else "<Q", len(raw) if length is None else length) + raw


def scalar(kind: int, layout: str, value: object) -> bytes:
    return struct.pack("<I" + layout, kind, value)


def text(value: str | bytes, length: int | None = None, version: int = 3) -> bytes:
    return struct.pack("<I", STRING) + string(value, length, version)


def array(kind: int, payload: bytes, count: int, version: int = 3) -> bytes:
    return struct.pack("<II" + ("I" if version == 1 else "Q"), ARRAY, kind, count) + payload


def texts(values: Sequence[str | bytes], count: int | None = None, version: int = 3) -> bytes:
    payload = b"".join(string(value, version=version) for value in values)
    return array(STRING, payload, len(values) if count is None else count, version)


def tensor(name: str | bytes, dims: Sequence[int], kind: int, offset: int, version: int = 3) -> bytes:
    """`dims` in GGUF's order, the fastest first."""
    layout = "I" if version == 1 else "Q"
    shape = struct.pack(f"<I{len(dims)}{layout}", len(dims), *dims)
    return string(name, version=version) + shape + struct.pack("<IQ", kind, offset)


def file(
    keys: Sequence[tuple[str | bytes, bytes]] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    alignment: int = 32,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    magic: bytes = b"GGUF",
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = magic + struct.pack("<I" + ("II" if version == 1 else "QQ"), version, *counts)
    head += b"".join(string(key, version=version) + value for key, value in keys)
    head += b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data if data else head
