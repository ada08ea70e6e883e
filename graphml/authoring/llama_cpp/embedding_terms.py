"""What llama.cpp reads of models whose rows embed texts or score pairs, beside the keys of its architectures.

Knows keys and shapes; nothing of vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.api.text_prompts import DEFAULT_PROMPT
from graphml.authoring.llama_cpp.fitted import reads
from graphml.errors import UsageError
from graphml.loading import discovery
from graphml.loading.huggingface.folder import CONFIG
from graphml.loading.huggingface.json_files import read_json
from graphml.weights import ModelFile, Tensor
from graphml.weights.metadata import StoredValue, stored

SENTENCES = "sentence_transformers."
"""The beginning of keys of prompts and of the longest text, which are kept for graphml."""
KINDS, SCORES = "token_types.weight", "cls.output.weight"
DENSE = ("dense_2", "dense_3")


def check_sentences(file: ModelFile, key: str) -> None:
    """UsageError for a prompt that every text gets, which llama.cpp does not put there."""
    if key == DEFAULT_PROMPT and file.metadata.text(key):
        raise UsageError(
            f"{file.path}: convert: {key} = {file.metadata.text(key)[:60]!r} cannot be said to llama.cpp, "
            "which puts no prompt before a text. --override-kv states another value, of another model"
        )


def added(file: ModelFile, arch: str, tensors: Mapping[str, Tensor]) -> dict[str, StoredValue]:
    """The keys; arch: llama.cpp's name."""
    known = reads(arch)[1]
    values: dict[str, StoredValue] = {}
    if not discovery.architecture(arch).causal:
        values[f"{arch}.attention.causal"] = stored(False)
    if KINDS in known:
        count = tensors[KINDS].shape[0] if KINDS in tensors else 1
        values["tokenizer.ggml.token_type_count"] = stored(count, "u32")
    if SCORES in tensors and tensors[SCORES].shape[0] > 1:
        values[f"{arch}.classifier.output_labels"] = stored(_labels(file, tensors[SCORES].shape[0]))
    return values | _dense(file, arch, tensors)


def _labels(file: ModelFile, count: int) -> list[str]:
    """A name for each score, by which llama.cpp counts them."""
    stated: Any = read_json(file.path / CONFIG).get("id2label")
    names = stated if isinstance(stated, dict) else {}
    return [str(names.get(str(number), f"LABEL_{number}")) for number in range(count)]


def _dense(file: ModelFile, arch: str, tensors: Mapping[str, Tensor]) -> dict[str, StoredValue]:
    """The sizes of dense layers behind the pooling."""
    held = {name: tensors[f"{name}.weight"].shape for name in DENSE if f"{name}.weight" in tensors}
    if not held:
        return {}
    width, last = file.metadata.integer(f"{_own(file)}.embedding_length"), [*held.values()][-1][0]
    keys = reads(arch)[0]
    if "dense_2_feat_in" not in keys:
        return {f"{arch}.embedding_length_out": stored(last, "u32")}
    if last != width:
        raise UsageError(
            f"{file.path}: convert: {[*held][-1]}.weight has {last} rows: llama.cpp's {arch} knows dense "
            f"layers that end with as many as embedding_length, {width}"
        )
    sizes: dict[str, int] = {}
    for name, (rows, columns) in held.items():
        sizes |= {f"{arch}.{name}_feat_in": columns, f"{arch}.{name}_feat_out": rows}
    return {key: stored(size, "u32") for key, size in sizes.items()}


def _own(file: ModelFile) -> str:
    return file.metadata.text("general.architecture")
