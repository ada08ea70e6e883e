"""Parts of a GGUF file taken out: keys as JSON, a tensor's values, a chat template, the vocabulary.

Knows what is where in a file; writes nothing.
"""

from __future__ import annotations

from typing import Any

from graphml.errors import UsageError, did_you_mean
from graphml.weights import ModelFile, Tensor

TEMPLATE = "tokenizer.chat_template"
JSON = "tokenizer.huggingface.json"


def keys_of(file: ModelFile, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Key -> its type and value, of all keys that begin so."""
    keys = {}
    for key in file.metadata:
        if key.startswith(prefix):
            kind, count, _ = file.metadata.beginning(key, 0)
            keys[key] = {"type": kind if count is None else f"{kind}[]", "value": file.metadata[key]}
    return keys


def tensor_named(file: ModelFile, name: str) -> Tensor:
    """A tensor; UsageError with the nearest names for one that there is not."""
    if name not in file.tensors:
        raise UsageError(f"{file.path}: no tensor {name[:80]!r}.{did_you_mean(name, [*file.tensors], 3)}")
    return file.tensors[name]


def template_of(file: ModelFile, name: str) -> str:
    """A chat template, "" for the usual one; UsageError with the names that there are."""
    key = f"{TEMPLATE}.{name}" if name and name != "default" else TEMPLATE
    if key not in file.metadata:
        there = [of.removeprefix(TEMPLATE).lstrip(".") or "default" for of in file.metadata if _is_one(of)]
        raise UsageError(f"{file.path}: no chat template {name or 'default'!r}: it has {there or 'none'}")
    return file.metadata.text(key)


def _is_one(key: str) -> bool:
    return key == TEMPLATE or key.startswith(f"{TEMPLATE}.")


def vocabulary_of(file: ModelFile) -> Any:
    """tokenizer.json where the file carries it, else the keys of its vocabulary."""
    if JSON in file.metadata:
        return file.metadata.text(JSON)
    keys = keys_of(file, "tokenizer.ggml.")
    if not keys:
        raise UsageError(f"{file.path}: has no vocabulary")
    return keys
