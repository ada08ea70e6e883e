"""A tiny Gemma 4 and its assistant, as files for tests; `tests/data/drafting` has the assistant's shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphml_models import gemma4

from tests import golden, tiny_model
from tests.golden import Floats

SPEC = golden.FOLDER.parent / "drafting" / "gemma4-assistant.json"
Change = Callable[[dict[str, Floats]], dict[str, Floats]]
MODEL_SEED = 3


def write_model(
    path: Path, tokens: Sequence[str] = (), n_vocab: int = 80, change: Change = dict, **keys: Any
) -> Path:
    """Gemma 4 with a window of 20 tokens; change: of its tensors; keys: metadata in place of its own."""
    n_vocab = len(tokens) or n_vocab
    of = gemma4.sample("gemma4")[0]
    widths = {"gemma4.attention.value_length": 32, "gemma4.attention.value_length_swa": 16}
    metadata: dict[str, tuple[str, Any]] = {}
    own = {"gemma4.vocab_size": n_vocab, **{f"gemma4.{key}": value for key, value in keys.items()}}
    for key, value in {**of.metadata, **widths, **own}.items():
        kind = "ARRAY INT32" if isinstance(value, list) else "UINT32" if isinstance(value, int) else "FLOAT32"
        metadata[key] = (kind, value)
    tensors = {
        name: golden.weights(name, _of_vocabulary(name, shape[::-1], n_vocab), MODEL_SEED)
        for name, shape in of.tensors.items()
    }
    return golden.write_gguf(path, "gemma4", {**metadata, **_vocabulary(tokens)}, change(tensors))


def write_assistant(
    path: Path,
    tokens: Sequence[str] = (),
    n_vocab: int = 80,
    change: Change = dict,
    without: Sequence[str] = (),
    **keys: Any,
) -> Path:
    """Its assistant; without: keys and tensors that the file does not have."""
    n_vocab = len(tokens) or n_vocab
    of = golden.spec(SPEC)
    own = {f"gemma4-assistant.{key}": value for key, value in {"vocab_size": n_vocab, **keys}.items()}
    metadata = {key: (kind, own.get(key, value)) for key, (kind, value) in of.metadata.items()}
    tensors = {
        name: golden.weights(name, _of_vocabulary(name, sizes, n_vocab), of.seed)
        for name, sizes in of.tensors.items()
    }
    kept = {name: array for name, array in change(tensors).items() if name not in without}
    said = {key: value for key, value in metadata.items() if key.partition(".")[2] not in without}
    return golden.write_gguf(path, "gemma4-assistant", {**said, **_vocabulary(tokens)}, kept)


def _of_vocabulary(name: str, sizes: tuple[int, ...], n_vocab: int) -> tuple[int, ...]:
    return (sizes[0], n_vocab) if "token_embd" in name else sizes


def _vocabulary(tokens: Sequence[str]) -> dict[str, tuple[str, Any]]:
    if not tokens:
        return {}
    return {
        "tokenizer.ggml.model": ("STRING", "gpt2"),
        "tokenizer.ggml.pre": ("STRING", "gpt-2"),
        "tokenizer.ggml.tokens": ("ARRAY STRING", list(tokens)),
        "tokenizer.ggml.merges": ("ARRAY STRING", tiny_model.MERGES),
    }
