"""Reads llama2.c's legacy checkpoints and tokenizers, and presents them as GGUF of architecture `llama`.

A checkpoint is seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len) and
float32 weights; a negative vocab_size says that the classifier is not shared with the embedding. A
tokenizer file is max_token_length (int32) and per token a float32 score, an int32 length and the bytes.
Source: run.c and export.py of https://github.com/karpathy/llama2.c. llama2.c rotates neighbouring pairs, as
GGUF's `llama` does, so no weight is permuted. Knows nothing of graphs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import Metadata, StoredValue
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import Tensor

HEADER = struct.Struct("<7i")
NORM_EPSILON = 1e-5  # fixed in run.c, as is the base of the rotation
ROPE_BASE = 10000.0
LARGEST = 1 << 24  # above any dimension or vocabulary of these files
MOST_LAYERS = 1 << 12
LARGEST_TOKENIZER = 1 << 26
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # GGUF's token types
UNKNOWN_ID, BEGIN_ID, END_ID = 0, 1, 2


@dataclass(frozen=True)
class Llama2cHeader:
    """The header of a checkpoint."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    shared_classifier: bool
    context: int

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads


def read_header(head: bytes) -> Llama2cHeader | None:
    """Return the header in the first 28 bytes of a file, or None if they cannot be one."""
    if len(head) < HEADER.size:
        return None
    width, hidden, layers, heads, kv_heads, vocabulary, context = HEADER.unpack_from(head)
    numbers = (width, hidden, layers, heads, kv_heads, abs(vocabulary), context)
    if not all(0 < number <= LARGEST for number in numbers) or layers > MOST_LAYERS:
        return None
    if width % heads or width // heads % 2 or heads % kv_heads:
        return None
    return Llama2cHeader(width, hidden, layers, heads, kv_heads, abs(vocabulary), vocabulary > 0, context)


def open_llama2c(file: FileMap, opened: list[FileMap]) -> ModelFile:
    """Read a checkpoint and the tokenizer beside it: `tok512.bin` for 512 tokens, else `tokenizer.bin`.

    Without a tokenizer file the model opens without `tokenizer.` keys. WeightsError if the size of the file
    does not match its header.
    """
    checkpoint = read_header(bytes(file.data[: HEADER.size]))
    if checkpoint is None:
        raise WeightsError(f"{file.path}: header: not a llama2.c checkpoint")
    plan = list(_layout(checkpoint))
    wanted = HEADER.size + 4 * sum(math.prod(shape) for _, shape in plan)
    if wanted != len(file.data):
        raise WeightsError(
            f"{file.path}: a llama2.c checkpoint with this header ({checkpoint}) has {wanted} bytes, "
            f"got {len(file.data)}: truncated, damaged or of another kind"
        )
    tensors: dict[str, Tensor] = {}
    position = HEADER.size
    for name, shape in plan:
        n_bytes = 4 * math.prod(shape)
        for layer_name, view in _per_layer(name, shape, file.data[position : position + n_bytes]):
            tensors[layer_name] = Tensor(layer_name, "f32", shape if "{}" not in name else shape[1:], view)
        position += n_bytes
    values = _model_metadata(file.path, checkpoint)
    names = [f"tok{checkpoint.vocabulary}.bin", "tokenizer.bin"]
    tokenizer = next(
        (file.path.with_name(name) for name in names if file.path.with_name(name).is_file()), None
    )
    maps = [file]
    if tokenizer is not None:
        maps.append(FileMap(tokenizer))
        opened.append(maps[-1])
        values |= _tokenizer_metadata(maps[-1], checkpoint.vocabulary)
    absent = {
        "tokenizer.": f"llama2.c keeps the tokenizer beside the checkpoint: no {' or '.join(names)} there"
    }
    return ModelFile(file.path, Metadata(file.path, values, absent), tensors, maps)


def _layout(checkpoint: Llama2cHeader) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the arrays in file order by their GGUF names; `{}` is the layer, the first dimension."""
    c = checkpoint
    kv_width = c.kv_heads * c.head_width
    yield "token_embd.weight", (c.vocabulary, c.width)
    yield "blk.{}.attn_norm.weight", (c.layers, c.width)
    yield "blk.{}.attn_q.weight", (c.layers, c.width, c.width)
    yield "blk.{}.attn_k.weight", (c.layers, kv_width, c.width)
    yield "blk.{}.attn_v.weight", (c.layers, kv_width, c.width)
    yield "blk.{}.attn_output.weight", (c.layers, c.width, c.width)
    yield "blk.{}.ffn_norm.weight", (c.layers, c.width)
    yield "blk.{}.ffn_gate.weight", (c.layers, c.hidden, c.width)
    yield "blk.{}.ffn_down.weight", (c.layers, c.width, c.hidden)
    yield "blk.{}.ffn_up.weight", (c.layers, c.hidden, c.width)
    yield "output_norm.weight", (c.width,)
    # Tables of cosines and sines, which run.c skips too: they can be computed from the header.
    yield "", (2, c.context, c.head_width // 2)
    if not c.shared_classifier:
        yield "output.weight", (c.vocabulary, c.width)


def _per_layer(name: str, shape: tuple[int, ...], data: Any) -> Iterator[tuple[str, Any]]:
    if "{}" in name:
        layer_bytes = data.nbytes // shape[0]
        for layer in range(shape[0]):
            yield name.format(layer), data[layer * layer_bytes : (layer + 1) * layer_bytes]
    elif name:
        yield name, data


def _stored(value: Any, type: str) -> StoredValue:
    if isinstance(value, list):
        return StoredValue(type, len(value), lambda limit: value[:limit])
    return StoredValue(type, None, lambda limit: value)


def _model_metadata(path: Path, c: Llama2cHeader) -> dict[str, StoredValue]:
    integers = {
        "context_length": c.context,
        "embedding_length": c.width,
        "block_count": c.layers,
        "feed_forward_length": c.hidden,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "rope.dimension_count": c.head_width,
        "vocab_size": c.vocabulary,
    }
    return {
        "general.architecture": _stored("llama", "string"),
        "general.name": _stored(path.stem, "string"),
        **{f"llama.{key}": _stored(value, "u32") for key, value in integers.items()},
        "llama.attention.layer_norm_rms_epsilon": _stored(NORM_EPSILON, "f32"),
        "llama.rope.freq_base": _stored(ROPE_BASE, "f32"),
    }


def _tokenizer_metadata(file: FileMap, vocabulary: int) -> dict[str, StoredValue]:
    """Read the tokenizer file in GGUF's terms: a mark for spaces, byte tokens, plain control names."""
    tokens, scores = _read_tokens(file, vocabulary)
    types = [BYTE if _is_byte(token) else NORMAL for token in tokens]
    specials = ((UNKNOWN_ID, "<unk>", UNKNOWN), (BEGIN_ID, "<s>", CONTROL), (END_ID, "</s>", CONTROL))
    for id, text, type in specials[: len(tokens)]:
        tokens[id], types[id] = text, type
    return {
        "tokenizer.ggml.model": _stored("llama", "string"),
        "tokenizer.ggml.tokens": _stored([token.replace(" ", "\u2581") for token in tokens], "string"),
        "tokenizer.ggml.scores": _stored(scores, "f32"),
        "tokenizer.ggml.token_type": _stored(types, "i32"),
        "tokenizer.ggml.unknown_token_id": _stored(UNKNOWN_ID, "u32"),
        "tokenizer.ggml.bos_token_id": _stored(BEGIN_ID, "u32"),
        "tokenizer.ggml.eos_token_id": _stored(END_ID, "u32"),
        "tokenizer.ggml.add_bos_token": _stored(True, "bool"),
        "tokenizer.ggml.add_eos_token": _stored(False, "bool"),
        "tokenizer.ggml.add_space_prefix": _stored(True, "bool"),
    }


def _read_tokens(file: FileMap, vocabulary: int) -> tuple[list[str], list[float]]:
    if len(file.data) > LARGEST_TOKENIZER:
        raise WeightsError(
            f"{file.path}: {len(file.data)} bytes, a llama2.c tokenizer has at most {LARGEST_TOKENIZER}"
        )
    raw, position = file.data.tobytes(), 4
    tokens, scores = [], []
    for index in range(vocabulary):
        where = f"{file.path}: token {index} of {vocabulary}"
        if position + 8 > len(raw):
            raise WeightsError(f"{where}: the file ends before it: truncated, or of another vocabulary")
        score, length = struct.unpack_from("<fi", raw, position)
        position += 8
        if not 0 <= length <= len(raw) - position:
            raise WeightsError(
                f"{where}: a length of {length} bytes, {len(raw) - position} are left in the file"
            )
        try:
            tokens.append(raw[position : position + length].decode())
        except UnicodeDecodeError as error:
            raise WeightsError(f"{where}: not UTF-8: {error}") from error
        scores.append(score)
        position += length
    if position != len(raw):
        raise WeightsError(
            f"{file.path}: {len(raw) - position} bytes after token {vocabulary - 1}: of another vocabulary"
        )
    return tokens, scores


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">") and _is_hex(token[3:5])


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)
