"""The tokenizer files of a folder as metadata: tokenizer.json, else tokenizer.model; chat templates.

The vocabulary has GGUF's form, so that pieces, roles and grammars work as of any file; texts are encoded by
the `tokenizers` library from the JSON itself, which the key `tokenizer.huggingface.json` holds, as GGUF's
specification has it. Knows the files; encodes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.loading.huggingface.json_files import read_json, read_text
from graphml.loading.huggingface.sentencepiece import sentencepiece_metadata
from graphml.weights.metadata import StoredValue, stored

NO_TOKENIZER = "the folder has no tokenizer.json and no tokenizer.model"
LARGEST_TOKENIZER = 256 << 20
MAX_TOKENS = 1 << 22
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's token types
ROLES = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id", "pad_token": "padding_token_id", "mask_token": "mask_token_id",
}  # fmt: skip
FURTHER_ENDS = ("eot_token_id", "eom_token_id")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def tokenizer_metadata(path: Path, config: Mapping[str, Any], n_vocab: int) -> dict[str, StoredValue]:
    """The keys that begin with `tokenizer.`; none of a vocabulary where the folder has none."""
    settings = _object(path / "tokenizer_config.json")
    metadata: dict[str, StoredValue] = {}
    if (path / "tokenizer.json").is_file():
        metadata = _from_json(path / "tokenizer.json", settings, n_vocab)
    elif (path / "tokenizer.model").is_file():
        metadata = sentencepiece_metadata(path / "tokenizer.model", settings, n_vocab)
    if metadata:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"].read(None)
        metadata |= _roles(path, settings, config, {text: i for i, text in enumerate(tokens)})
    return metadata | _templates(path, settings)


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _from_json(path: Path, settings: Mapping[str, Any], n_vocab: int) -> dict[str, StoredValue]:
    text = read_text(path, LARGEST_TOKENIZER)
    try:
        whole = json.loads(text)
        model, added = whole["model"], whole.get("added_tokens") or []
        vocabulary = _vocabulary(model)
        entries = [(token["content"], int(token["id"]), bool(token.get("special"))) for token in added]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path}: wanted a tokenizer of the `tokenizers` library: {error!r}") from None
    ids = {**vocabulary, **{content: id for content, id, _ in entries}}
    count = max([n_vocab, *(id + 1 for id in ids.values())])
    if min(ids.values(), default=0) < 0 or count > MAX_TOKENS:
        raise WeightsError(f"{path}: wanted ids from 0 to {MAX_TOKENS - 1}; got {count - 1}")
    tokens, types = [f"[PAD{i}]" for i in range(count)], [UNUSED] * count
    for content, id in ids.items():
        tokens[id], types[id] = content, NORMAL
    byte_level = _has(whole.get("decoder"), "ByteLevel") or _has(whole.get("pre_tokenizer"), "ByteLevel")
    if not byte_level:
        for content, id in vocabulary.items():
            types[id] = BYTE if _BYTE.fullmatch(content) else NORMAL
    for _, id, special in entries:
        types[id] = CONTROL if special else USER_DEFINED
    unknown = model.get("unk_token")
    if isinstance(unknown, str) and unknown in ids:
        types[ids[unknown]] = UNKNOWN
    first = _first_special(whole.get("post_processor"))
    return {
        "tokenizer.ggml.model": stored("huggingface"),
        "tokenizer.ggml.tokens": stored(tokens),
        "tokenizer.ggml.token_type": stored(types),
        "tokenizer.ggml.add_bos_token": stored(bool(settings.get("add_bos_token", False)) or first),
        "tokenizer.ggml.add_space_prefix": stored(_drops_space(whole)),
        "tokenizer.huggingface.byte_level": stored(byte_level),
        "tokenizer.huggingface.json": stored(text),
    }


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id: an object, or for unigram a list of tokens and scores."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        return {str(entry[0]): id for id, entry in enumerate(vocabulary)}
    return {str(token): int(id) for token, id in vocabulary.items()}


def _parts(step: Any) -> Iterator[Mapping[str, Any]]:
    """A step of the tokenizer, or those of a sequence of steps."""
    if isinstance(step, dict):
        yield step
        for name in ("decoders", "pretokenizers", "normalizers", "processors"):
            for part in step.get(name) or []:
                if isinstance(part, dict):
                    yield part


def _has(step: Any, kind: str) -> bool:
    return any(part.get("type") == kind for part in _parts(step))


def _drops_space(whole: Mapping[str, Any]) -> bool:
    """Whether decoding drops the space that encoding puts before a text."""
    for part in _parts(whole.get("decoder")):
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start"):
            return True
        if part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            return bool(part.get("add_prefix_space", True))
    return False


def _first_special(processor: Any) -> bool:
    """Whether a token is put before a text."""
    for part in _parts(processor):
        single = part.get("single")
        if part.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
            return isinstance(single[0], dict) and "SpecialToken" in single[0]
    return False


def _roles(
    path: Path, settings: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]
) -> dict[str, StoredValue]:
    """Ids of special tokens: by their texts, else by config.json; all ends of generation_config.json."""
    texts = {**_object(path / "special_tokens_map.json"), **settings}
    generation = _object(path / "generation_config.json")
    metadata: dict[str, StoredValue] = {}
    for role, key in ROLES.items():
        text = texts.get(role)
        text = text.get("content") if isinstance(text, dict) else text
        id = ids.get(text) if isinstance(text, str) else None
        stated = config.get(f"{role}_id")
        stated = stated[0] if isinstance(stated, list) and stated else stated
        id = stated if id is None and type(stated) is int else id
        if id is not None and 0 <= id < len(ids):
            metadata[f"tokenizer.ggml.{key}"] = stored(id)
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    known = None if eos is None else eos.read(None)
    others = [
        end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int and end != known
    ]
    for key, id in zip(FURTHER_ENDS, others, strict=False):
        if 0 <= id < len(ids):
            metadata[f"tokenizer.ggml.{key}"] = stored(id)
    return metadata


def _templates(path: Path, settings: Mapping[str, Any]) -> dict[str, StoredValue]:
    """chat_template.jinja, else the template of tokenizer_config.json; named ones beside the default."""
    named: dict[str, str] = {}
    if (path / "chat_template.jinja").is_file():
        named["default"] = read_text(path / "chat_template.jinja")
    else:
        template = settings.get("chat_template") or _object(path / "chat_template.json").get("chat_template")
        if isinstance(template, str):
            named["default"] = template
        elif isinstance(template, list):
            named |= {
                str(entry["name"]): str(entry["template"])
                for entry in template
                if isinstance(entry, dict) and "name" in entry and "template" in entry
            }
    for file in sorted((path / "additional_chat_templates").glob("*.jinja"))[:64]:
        named[file.stem] = read_text(file)
    metadata = {"tokenizer.chat_template": stored(named.pop("default"))} if "default" in named else {}
    if named:
        metadata["tokenizer.chat_templates"] = stored(sorted(named))
    return metadata | {f"tokenizer.chat_template.{name}": stored(text) for name, text in named.items()}
