"""Vocabularies for tests: the recorded ones, and small ones written as a Python dict."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from graphml.text.tokenizer.pieces import BYTE_LETTERS
from graphml.weights import open_model
from graphml.weights.metadata import Metadata, StoredValue

DATA = Path(__file__).parents[1] / "data" / "tokenizers"
WHOLE = ("gpt-2", "llama-spm", "bert-bge", "phi-3", "deepseek-coder", "qwen2", "llama-bpe")
CUT = ("gemma-4", "nomic-bert-moe")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def recorded(name: str) -> Any:
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


def recorded_metadata(name: str, folder: Path) -> Metadata:
    """The metadata of a recorded vocabulary, unpacked into a folder; or of one that is made."""
    if name in MADE:
        return metadata(MADE[name]())
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


def _slices(texts: Iterable[Any], rng: random.Random, longest: int, count: int) -> list[Any]:
    """Parts of texts, each once."""
    parts: dict[Any, None] = {}
    every = [text for text in texts if len(text) > 1]
    while len(parts) < count:
        text = rng.choice(every)
        start = rng.randrange(len(text) - 1)
        parts[text[start : start + rng.randint(2, longest)]] = None
    return list(parts)


def longest_match_vocabulary() -> dict[str, Any]:
    """In RWKV's form: all bytes, and parts of texts that need not be whole characters."""
    texts = [text.encode() for text, _, _ in recorded("gpt-2")["cases"]]
    parts = _slices(texts, random.Random(1), 12, 3000)
    tokens = ["<s>", *(repr(token)[2:-1] for token in [bytes([byte]) for byte in range(256)] + parts)]
    unused = [f"[PAD{index}]" for index in range(4)]
    types = [CONTROL] + [NORMAL] * (len(tokens) - 1) + [UNUSED] * len(unused)
    return {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens + unused,
            "tokenizer.ggml.token_type": types, "tokenizer.ggml.add_bos_token": True}  # fmt: skip


def best_sum_vocabulary() -> dict[str, Any]:
    """In PLaMo 2's form: special tokens, bytes, most characters of texts, parts of these, some unusable."""
    rng, texts = random.Random(2), [text for text, _, _ in recorded("gpt-2")["cases"]]
    special = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad")]
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted({letter for text in texts for letter in text if ord(letter) % 5})
    parts = [*letters, *_slices(texts, rng, 8, 3000)]
    scores = [0.0] * 260 + [
        rng.choice([-2000.0, 1.5, *(-rng.uniform(3, 16) for _ in range(20))]) for _ in parts
    ]
    types = [UNKNOWN, *[CONTROL] * 3, *[BYTE] * 256, *[NORMAL] * len(parts)]
    return {"tokenizer.ggml.model": "plamo2", "tokenizer.ggml.tokens": [*special, *of_bytes, *parts],
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types}  # fmt: skip


def unscored_vocabulary() -> dict[str, Any]:
    """In SentencePiece's form, without scores: of all pairs the first one is merged."""
    texts = [text.replace(" ", "\u2581") for text, _, _ in recorded("gpt-2")["cases"]]
    letters = sorted({letter for text in texts for letter in text if ord(letter) % 5})
    parts = dict.fromkeys([*letters, *_slices(texts, random.Random(3), 5, 4000)])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *parts]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(parts)]
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types}  # fmt: skip


def dna_vocabulary() -> dict[str, Any]:
    """Pairs of ASCII letters, and sixes of bases behind `<oov>`."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    pairs = [f"{first} {second}" for first in letters for second in letters if (ord(first) * ord(second)) % 3]
    sixes = ["".join(bases) + "\ue000" for bases in product("ACGT", repeat=6)]
    tokens = [*BYTE_LETTERS, *(pair.replace(" ", "") for pair in pairs), "<dna>", "</dna>", "<oov>", *sixes]
    return {"tokenizer.ggml.model": "hybriddna", "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": pairs,
            "tokenizer.ggml.eos_token_id": 0}  # fmt: skip


MADE = {"rwkv": longest_match_vocabulary, "plamo2": best_sum_vocabulary, "hybriddna": dna_vocabulary,
        "unscored": unscored_vocabulary}  # fmt: skip
ALL = (*WHOLE, *CUT, *MADE)


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
