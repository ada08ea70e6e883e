"""The tokenizer files of a folder as metadata: tokenizer.json, else tokenizer.model; chat templates.

The vocabulary has GGUF's form, so that pieces, roles and grammars work as of any file; texts are encoded by
the `tokenizers` library from the JSON itself, which the key `tokenizer.huggingface.json` holds, as GGUF's
specification has it. Knows the files; encodes nothing.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.loading.huggingface.added_tokens import add_tokens, numbered_tokens, special_tokens
from graphml.loading.huggingface.json_files import read_json, read_text
from graphml.loading.huggingface.tokenizer_classes import steps_of_class, words_of_mistral
from graphml.system.read_files import guarded, plain_bytes
from graphml.weights.metadata import StoredValue, stored

LARGEST = 64 << 20
UNIGRAM, BPE = 1, 2
# Fields of the messages that are read.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, CHARSMAP, ADD_PREFIX, REMOVE_SPACES = 3, 2, 3, 4

Field = int | bytes


def sentencepiece_metadata(path: Path, settings: Mapping[str, Any], n_vocab: int) -> dict[str, StoredValue]:
    """The keys of the vocabulary; settings: tokenizer_config.json, whose added tokens follow the pieces."""
    with guarded(path, WeightsError, "wanted a model of sentencepiece"):
        return _sentencepiece_metadata(path, settings, n_vocab)


def _sentencepiece_metadata(path: Path, settings: Mapping[str, Any], n_vocab: int) -> dict[str, StoredValue]:
    whole = _message(path, plain_bytes(path, WeightsError, LARGEST))
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
    """Append the added tokens of other files, and fill up to the rows of the embedding."""
    by_id = {id: (token["content"], token["special"]) for id, token in _numbered(path, settings, tokens)}
    count = max(len(tokens), n_vocab, *(id + 1 for id in by_id)) if by_id else max(len(tokens), n_vocab)
    most = min(max(len(tokens), n_vocab) + MAX_UNUSED, MAX_TOKENS)
    if count > most:
        raise WeightsError(f"{path}: {count} tokens; at most {most} are allowed")
    for id in range(len(tokens), count):
        tokens.append(f"[PAD{id}]")
        scores.append(-1000.0)
        types.append(UNUSED)
    for id, (content, special) in by_id.items():
        if tokens[id] != content or types[id] == UNUSED:
            tokens[id], types[id] = content, CONTROL if special else USER_DEFINED


def _numbered(
    path: Path, settings: Mapping[str, Any], tokens: list[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Added tokens with their ids; special ones that are not there come behind all others."""
    numbered = numbered_tokens(path.parent, settings)
    yield from numbered.items()
    known = {*tokens, *(token["content"] for token in numbered.values())}
    last = max(len(tokens), *(id + 1 for id in numbered)) if numbered else len(tokens)
    for token in special_tokens(path.parent, settings):
        if token["content"] not in known:
            known.add(token["content"])
            yield last, token
            last += 1


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


NO_TOKENIZER = "the folder has no tokenizer.json and no tokenizer.model"
LARGEST_TOKENIZER = 256 << 20
MAX_TOKENS, MAX_UNUSED = 1 << 22, 1 << 16
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's token types
ROLES = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id", "pad_token": "padding_token_id", "mask_token": "mask_token_id",
}  # fmt: skip
END_TOKENS = "tokenizer.ggml.end_token_ids"
FURTHER_ENDS = ("eot_token_id", "eom_token_id")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def tokenizer_metadata(
    path: Path, config: Mapping[str, Any], n_vocab: int, lowercase: bool = False
) -> dict[str, StoredValue]:
    """The keys that begin with `tokenizer.`; none of a vocabulary where the folder has none.

    lowercase: texts become lower case before all else.
    """
    settings = _object(path / "tokenizer_config.json")
    metadata: dict[str, StoredValue] = {}
    if (path / "tokenizer.json").is_file():
        kind = config.get("model_type")
        metadata = _from_json(path / "tokenizer.json", settings, n_vocab, kind, lowercase)
    elif lowercase:
        raise WeightsError(f"{path}: do_lower_case is true: wanted a tokenizer.json")
    elif (path / "tokenizer.model").is_file():
        metadata = sentencepiece_metadata(path / "tokenizer.model", settings, n_vocab)
    with guarded(path / "tokenizer_config.json", WeightsError):
        if metadata:
            tokens: list[str] = metadata["tokenizer.ggml.tokens"].read(None)
            metadata |= _roles(path, settings, config, {text: i for i, text in enumerate(tokens)})
        return metadata | _templates(path, settings)


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _from_json(
    path: Path, settings: Mapping[str, Any], n_vocab: int, model_type: Any, lowercase: bool
) -> dict[str, StoredValue]:
    with guarded(path, WeightsError, "wanted a tokenizer of the `tokenizers` library"):
        return _json_metadata(path, settings, n_vocab, model_type, lowercase)


def _json_metadata(
    path: Path, settings: Mapping[str, Any], n_vocab: int, model_type: Any, lowercase: bool
) -> dict[str, StoredValue]:
    text = read_text(path, LARGEST_TOKENIZER)
    whole = json.loads(text)
    model, added = whole["model"], whole.get("added_tokens") or []
    vocabulary = _vocabulary(model)
    steps = steps_of_class(whole, settings, model_type, lowercase)
    has_more = add_tokens(path.parent, settings, added, vocabulary)
    n_tokens = len({*vocabulary, *(token["content"] for token in added)})
    steps |= words_of_mistral(whole, settings, _object(path.with_name("config.json")), n_tokens)
    whole |= steps
    if has_more or steps:
        text = json.dumps({**whole, "added_tokens": added}, ensure_ascii=False)
    entries = [(_name(token["content"]), int(token["id"]), bool(token.get("special"))) for token in added]
    ids = {**vocabulary, **{content: id for content, id, _ in entries}}
    count = max([n_vocab, *(id + 1 for id in ids.values())])
    most = min(max(n_vocab, len(ids)) + MAX_UNUSED, MAX_TOKENS)
    if min(ids.values(), default=0) < 0 or count > most:
        raise WeightsError(f"{path}: wanted ids from 0 to {most - 1}; got {min(ids.values())} to {count - 1}")
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
        return {_name(entry[0]): id for id, entry in enumerate(vocabulary)}
    return {str(token): int(id) for token, id in vocabulary.items()}


def _name(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"wanted the text of a token; got {text!r:.60}")
    return text


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
        if id is not None and id >= 0:  # -1 is none; others out of range are warned of where they are read
            metadata[f"tokenizer.ggml.{key}"] = stored(id)
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    known = None if eos is None else eos.read(None)
    others = [
        end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int and end != known
    ]
    others = [id for id in others if id >= 0]
    for key, id in zip(FURTHER_ENDS, others, strict=False):
        metadata[f"tokenizer.ggml.{key}"] = stored(id)
    return metadata | ({END_TOKENS: stored(others)} if len(others) > len(FURTHER_ENDS) else {})


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
