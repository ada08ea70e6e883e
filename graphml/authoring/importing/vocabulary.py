"""The tokenizer of a plain module, whose files know none: from a folder of transformers or another GGUF file.

Knows where tokenizers are; nothing of modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphml.errors import UsageError, WeightsError
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.tokenizer_files import tokenizer_metadata
from graphml.system.read_files import guarded
from graphml.weights import Metadata, open_model

FILES = ("tokenizer.json", "tokenizer.model")
TOKENS = "tokenizer.ggml.tokens"


def tokenizer_keys(path: Path, n_vocab: int) -> dict[str, Any]:
    """The keys of a GGUF file that begin with `tokenizer.`, for logits of n_vocab tokens.

    path: a folder with tokenizer.json or tokenizer.model, one of these files, or a GGUF file. WeightsError
    where there is none; UsageError where it has other tokens than the module has logits.
    """
    if path.suffix == ".gguf":
        with open_model(path) as file:
            keys = {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
    else:
        folder = path.parent if path.name in FILES else path
        config = folder / "config.json"
        with guarded(folder, WeightsError):
            fields = read_json(config) if config.is_file() else {}
            values = tokenizer_metadata(folder, fields, n_vocab)
            metadata = Metadata(folder, values, {})
            keys = {key: metadata[key] for key in metadata}
    if TOKENS not in keys:
        raise WeightsError(f"{path}: wanted a tokenizer: {', '.join(FILES)}, or a GGUF file that has one")
    if len(keys[TOKENS]) != n_vocab:
        raise UsageError(
            f"--tokenizer: {path} has {len(keys[TOKENS])} tokens; the module has {n_vocab} logits"
        )
    return keys
