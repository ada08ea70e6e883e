"""Vocabularies for tests: the recorded ones, and small ones written as a Python dict."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphml.text.tokenizer.pieces import BYTE_LETTERS
from graphml.weights import open_model
from graphml.weights.metadata import Metadata, StoredValue

DATA = Path(__file__).parents[1] / "data" / "tokenizers"
WHOLE = ("gpt-2", "llama-spm", "bert-bge", "phi-3", "deepseek-coder", "qwen2", "llama-bpe")
ALL = (*WHOLE, "gemma-4", "nomic-bert-moe")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def recorded(name: str) -> Any:
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


def recorded_metadata(name: str, folder: Path) -> Metadata:
    """The metadata of a recorded vocabulary, unpacked into a folder."""
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
    return open_model(path).metadata


def metadata(values: Mapping[str, Any]) -> Metadata:
    """Metadata with these values; keys without a dot get the prefix `tokenizer.ggml.`."""
    stored = {}
    for key, value in values.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        first = value[0] if isinstance(value, list) and value else value
        kind = {bool: "bool", int: "i32", float: "f32", str: "string", list: "string"}[type(first)]
        count = len(value) if isinstance(value, list) else None
        stored[name] = StoredValue(
            kind, count, lambda limit, value=value: value if limit is None else value[:limit]
        )
    return Metadata(Path("vocabulary"), stored)


def pairs_vocabulary() -> dict[str, Any]:
    """All bytes and all pairs of bytes in a shuffled order: where a text is cut shows in its ids."""
    pairs = [f"{first} {second}" for first in BYTE_LETTERS for second in BYTE_LETTERS]
    random.Random(0).shuffle(pairs)
    tokens = [*BYTE_LETTERS, *(pair.replace(" ", "") for pair in pairs)]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": pairs}


def byte_pair(*extra: tuple[str, int], merges: tuple[str, ...] = (), **values: Any) -> Metadata:
    """A vocabulary of printable ASCII letters, `Ġ` for a space, what the merges make, and `extra` tokens."""
    letters = [chr(code) for code in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*letters, *made, *(text for text, _ in extra)]
    types = [NORMAL] * (len(letters) + len(made)) + [kind for _, kind in extra]
    return metadata(
        {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": list(merges)}
        | values
    )


def scored(*tokens: tuple[str, float, int], **values: Any) -> Metadata:
    """A SentencePiece vocabulary: <unk> <s> </s>, byte tokens from id 3 on, then `tokens`."""
    rows = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    rows += tokens
    texts, scores, types = map(list, zip(*rows, strict=True))
    return metadata({"model": "llama", "tokens": texts, "scores": scores, "token_type": types} | values)
