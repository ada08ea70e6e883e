"""Gives a model of random weights another file's vocabulary, so that servers can be asked in words.

python benchmarks/words_for_shape.py SHAPE TYPE VOCABULARY.gguf OUT.gguf [N_VOCAB]

The weights are those of `graphml bench --shape SHAPE --type TYPE`, the keys `tokenizer.*` the other file's.
It has as many tokens as the shape; N_VOCAB: the shape with so many. llama.cpp opens the file too.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from graphml.bench.made_models import ALIGNMENT, bench_model
from graphml.bench.shapes import shape_named

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of GGUF's types of fixed size."""
STRING, ARRAY = 8, 9
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Of a vocabulary that has none."""


def _number(file: BinaryIO, form: str) -> int:
    value: int = struct.unpack(form, file.read(struct.calcsize(form)))[0]
    return value


def _skip(file: BinaryIO, kind: int) -> None:
    """Go behind a value."""
    if kind == STRING:
        file.seek(_number(file, "<Q"), 1)
    elif kind == ARRAY:
        inner, count = _number(file, "<I"), _number(file, "<Q")
        if inner in SIZES:
            file.seek(SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(SIZES[kind], 1)


def _keys(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Each key of a header, and its bytes in the file, name included."""
    file.seek(16)
    for _ in range(_number(file, "<Q")):
        begin = file.tell()
        name = file.read(_number(file, "<Q")).decode()
        _skip(file, _number(file, "<I"))
        end = file.tell()
        file.seek(begin)
        yield name, file.read(end - begin)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def with_words(weights: Path, vocabulary: Path, out: Path) -> None:
    """Write a model's file anew, with another one's vocabulary."""
    with weights.open("rb") as model, vocabulary.open("rb") as words, out.open("wb") as written:
        keys = {name: raw for name, raw in _keys(model) if not name.startswith("tokenizer.")}
        infos = model.tell()
        of_words = {name: raw for name, raw in _keys(words) if name.startswith("tokenizer.")}
        name = "tokenizer.chat_template"
        of_words.setdefault(name, _string(name) + struct.pack("<I", STRING) + _string(TEMPLATE))
        keys |= of_words
        model.seek(8)
        n_tensors = _number(model, "<Q")
        model.seek(infos)
        for _ in range(n_tensors):
            model.seek(_number(model, "<Q"), 1)
            model.seek(8 * _number(model, "<I") + 12, 1)
        end = model.tell()
        model.seek(infos)
        written.write(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(keys)) + b"".join(keys.values()))
        written.write(model.read(end - infos))
        written.write(bytes(-written.tell() % ALIGNMENT))
        model.seek(end + -end % ALIGNMENT)
        while part := model.read(1 << 24):
            written.write(part)


if __name__ == "__main__":
    shape, kind, vocabulary, out, *more = sys.argv[1:]
    wanted = shape_named(shape)
    if more:
        wanted = replace(wanted, name=f"{shape}-{more[0]}", n_vocab=int(more[0]))
    with_words(bench_model(wanted, kind), Path(vocabulary), Path(out))
