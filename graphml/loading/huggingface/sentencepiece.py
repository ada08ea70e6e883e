"""Reads sentencepiece's tokenizer.model, a protobuf message, and presents it as GGUF's vocabulary.

Format: sentencepiece_model.proto of https://github.com/google/sentencepiece. Every length is checked. Knows
this message alone; encodes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.weights.metadata import StoredValue, stored

LARGEST = 64 << 20
MAX_TOKENS = 1 << 22
UNIGRAM, BPE = 1, 2
USER_DEFINED, UNUSED, CONTROL = 4, 5, 3
# Fields of the messages that are read.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, CHARSMAP, ADD_PREFIX, REMOVE_SPACES = 3, 2, 3, 4

Field = int | bytes


def sentencepiece_metadata(path: Path, settings: Mapping[str, Any], n_vocab: int) -> dict[str, StoredValue]:
    """The keys of the vocabulary; settings: tokenizer_config.json, whose added tokens follow the pieces."""
    if path.stat().st_size > LARGEST:
        raise WeightsError(f"{path}: cannot be read: it is larger than {LARGEST >> 20} MiB")
    whole = _message(path, path.read_bytes())
    tokens, scores, types = _pieces(path, whole.get(PIECES, []))
    trainer = _message(path, _last_bytes(whole, TRAINER))
    normalizer = _message(path, _last_bytes(whole, NORMALIZER))
    kind = _last_int(trainer, MODEL_TYPE, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise WeightsError(f"{path}: model_type {kind}: wanted unigram ({UNIGRAM}) or byte pairs ({BPE})")
    _add(path, settings, tokens, scores, types, n_vocab)
    metadata = {
        "tokenizer.ggml.model": stored("t5" if kind == UNIGRAM else "llama"),
        "tokenizer.ggml.tokens": stored(tokens),
        "tokenizer.ggml.scores": stored(scores),
        "tokenizer.ggml.token_type": stored(types),
        "tokenizer.ggml.add_space_prefix": stored(bool(_last_int(normalizer, ADD_PREFIX, 1))),
        "tokenizer.ggml.remove_extra_whitespaces": stored(bool(_last_int(normalizer, REMOVE_SPACES, 1))),
        "tokenizer.ggml.add_bos_token": stored(bool(settings.get("add_bos_token", kind == BPE))),
        "tokenizer.ggml.add_eos_token": stored(bool(settings.get("add_eos_token", False))),
    }
    charsmap = _last_bytes(normalizer, CHARSMAP)
    if kind == UNIGRAM and charsmap:
        metadata["tokenizer.ggml.precompiled_charsmap"] = StoredValue(
            "u8", len(charsmap), lambda n: list(charsmap[:n])
        )
    return metadata


def _pieces(path: Path, pieces: list[Field]) -> tuple[list[str], list[float], list[int]]:
    if not 0 < len(pieces) <= MAX_TOKENS:
        raise WeightsError(f"{path}: wanted 1 to {MAX_TOKENS} pieces; got {len(pieces)}")
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    for index, piece in enumerate(pieces):
        fields = _message(path, piece if isinstance(piece, bytes) else b"")
        raw = fields.get(SCORE, [b"\0\0\0\0"])[-1]
        try:
            tokens.append(_last_bytes(fields, TEXT).decode())
            scores.append(float(struct.unpack("<f", raw if isinstance(raw, bytes) else b"")[0]))
        except (UnicodeDecodeError, struct.error) as error:
            raise WeightsError(f"{path}: piece {index}: {error}") from None
        types.append(_last_int(fields, TYPE, 1))
    return tokens, scores, types


def _add(
    path: Path,
    settings: Mapping[str, Any],
    tokens: list[str],
    scores: list[float],
    types: list[int],
    n_vocab: int,
) -> None:
    """Append added tokens of tokenizer_config.json, and fill up to the rows of the embedding."""
    added = settings.get("added_tokens_decoder")
    by_id: dict[int, tuple[str, bool]] = {}
    for id, token in added.items() if isinstance(added, dict) else ():
        if str(id).isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
            by_id[int(id)] = token["content"], bool(token.get("special"))
    count = max(len(tokens), n_vocab, *(id + 1 for id in by_id)) if by_id else max(len(tokens), n_vocab)
    if count > MAX_TOKENS:
        raise WeightsError(f"{path}: {count} tokens; at most {MAX_TOKENS} are allowed")
    for id in range(len(tokens), count):
        tokens.append(f"[PAD{id}]")
        scores.append(-1000.0)
        types.append(UNUSED)
    for id, (content, special) in by_id.items():
        if tokens[id] != content or types[id] == UNUSED:
            tokens[id], types[id] = content, CONTROL if special else USER_DEFINED


def _last_bytes(fields: Mapping[int, list[Field]], number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    return value if isinstance(value, bytes) else b""


def _last_int(fields: Mapping[int, list[Field]], number: int, default: int) -> int:
    value = fields.get(number, [default])[-1]
    return value if isinstance(value, int) else default


def _message(path: Path, data: bytes) -> dict[int, list[Field]]:
    """The fields of a protobuf message by number, in order; those of fixed width as bytes."""
    fields: dict[int, list[Field]] = {}
    try:
        for number, value in _fields(data):
            fields.setdefault(number, []).append(value)
    except IndexError:
        raise WeightsError(f"{path}: wanted a model of sentencepiece; truncated or damaged") from None
    return fields


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """IndexError where the bytes end within a field, or are of no known kind."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        length = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            length, at = _varint(data, at)
        if wire not in (1, 2, 5) or length > len(data) - at:
            raise IndexError
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError
