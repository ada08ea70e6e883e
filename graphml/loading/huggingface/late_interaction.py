"""How a folder of a late-interaction model (ColBERT) reads queries and documents: prefixes, lengths, masks.

By PyLate's files, `config_sentence_transformers.json` beside a `modules.json` with Dense and without Pooling,
or by Stanford's, `artifact.metadata` beside an HF_ColBERT whose checkpoint has `linear.weight`. Knows the
files; nothing of graphs or texts.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.errors import ArchitectureError, WeightsError
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.pooling import LATE
from graphml.system.read_files import guarded, plain_json
from graphml.weights.metadata import StoredValue, stored

STANFORD, ARTIFACT, LINEAR = "HF_ColBERT", "artifact.metadata", "linear.weight"
VOCABULARY, TOKENIZER = "tokenizer.json", "tokenizer_config.json"
LARGEST, MOST_TOKENS, MOST_WORDS = 64 << 20, 1 << 20, 4096
# What is assumed where a file does not say it, as PyLate does, and what each of its fields is in Stanford's.
ASSUMED: Mapping[str, Any] = {
    "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32, "document_length": 180,
    "skiplist_words": list(string.punctuation), "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
}  # fmt: skip
OF_STANFORD: Mapping[str, str] = {
    "query_prefix": "query_token_id", "document_prefix": "doc_token_id", "query_length": "query_maxlen",
    "document_length": "doc_maxlen", "attend_to_expansion_tokens": "attend_to_mask_tokens",
}  # fmt: skip
STANFORD_PREFIXES = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}


@dataclass(frozen=True)
class LateFields:
    """The fields of `ASSUMED`, as a folder has them."""

    path: Path
    fields: Mapping[str, Any]

    def metadata(self, architecture: str) -> dict[str, StoredValue]:
        """The keys of prefixes, lengths and masks, with tokens as ids."""
        folder, fields = self.path.parent, self.fields
        tokens = _tokens(folder / VOCABULARY)
        settings = read_json(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else {}
        unknown = tokens.get(_content(settings.get("unk_token")))
        skipped = [tokens.get(word, unknown) for word in fields["skiplist_words"]]
        prefixes = {name: self._prefix(tokens, name) for name in STANFORD_PREFIXES}
        own = {
            "query_prefix_id": prefixes["query_prefix"],
            "document_prefix_id": prefixes["document_prefix"],
            "query_length": fields["query_length"],
            "document_length": fields["document_length"],
            "expansion_id": self._expansion(tokens, settings) if fields["do_query_expansion"] else -1,
            "attends": fields["attend_to_expansion_tokens"],
            "skipped_ids": sorted({id for id in skipped if id is not None} or {-1}),
        }
        keys = {f"{architecture}.{LATE}.{name}": stored(value) for name, value in own.items()}
        return {f"{architecture}.{LATE}": stored(True), **keys}

    def _prefix(self, tokens: Mapping[str, int], name: str) -> int:
        text = self.fields[name]
        if text and text not in tokens:
            raise WeightsError(f"{self.path}: {name}: wanted a token of {VOCABULARY}; got {text[:80]!r}")
        return tokens[text] if text else -1

    def _expansion(self, tokens: Mapping[str, int], settings: Mapping[str, Any]) -> int:
        """The token that fills queries up: the mask, else what ends a text, else padding."""
        stated = [_content(settings.get(f"{role}_token")) for role in ("mask", "eos", "pad")]
        known = [tokens[text] for text in stated if text in tokens]
        if not known:
            raise WeightsError(
                f"{self.path}: do_query_expansion: wanted a mask_token in {TOKENIZER}; got {stated}"
            )
        return known[0]


def pylate_fields(path: Path, config: Mapping[str, Any]) -> LateFields:
    """The fields of config_sentence_transformers.json."""
    return LateFields(path, _checked(path, {name: config.get(name) for name in ASSUMED}))


def stanford_fields(folder: Path) -> LateFields:
    """The fields of artifact.metadata, which may be missing."""
    path = folder / ARTIFACT
    config: Any = {}
    if path.is_file():
        config = plain_json(path, WeightsError, 1 << 20, "cannot be read as JSON")
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: wanted an object")
    fields = {name: config.get(theirs) for name, theirs in OF_STANFORD.items()}
    if config.get("mask_punctuation") is False:
        fields["skiplist_words"] = []
    if config.get("similarity", "cosine") != "cosine":
        raise ArchitectureError(f"{path}: similarity: wanted cosine; got {config['similarity']!r:.40}")
    defaults = {name: text for name, text in STANFORD_PREFIXES.items() if fields[name] is None}
    return LateFields(path, _checked(path, {**fields, **defaults}))


def is_stanford(config: Mapping[str, Any]) -> bool:
    """Whether config.json is of a ColBERT of Stanford's."""
    names = config.get("architectures")
    return isinstance(names, list) and names[:1] == [STANFORD]


def _checked(path: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    fields = {**ASSUMED, **{name: value for name, value in stated.items() if value is not None}}
    for name, value in fields.items():
        kind = type(ASSUMED[name])
        if type(value) is not kind:
            raise WeightsError(f"{path}: {name}: wanted {kind.__name__}; got {str(value)[:40]!r}")
    words: Sequence[Any] = fields["skiplist_words"]
    if len(words) > MOST_WORDS or any(not isinstance(word, str) for word in words):
        raise WeightsError(f"{path}: skiplist_words: wanted at most {MOST_WORDS} texts")
    for name in ("query_length", "document_length"):
        if not 4 <= fields[name] <= MOST_TOKENS:
            raise WeightsError(f"{path}: {name}: wanted 4 to {MOST_TOKENS}; got {fields[name]}")
    return fields


def _tokens(path: Path) -> dict[str, int]:
    """The id of each token by its text, as tokenizer.json has them."""
    with guarded(path, WeightsError, "wanted a file of the tokenizers library"):
        whole = plain_json(path, WeightsError, LARGEST, "cannot be read as JSON")
        vocabulary = whole["model"]["vocab"]
        if isinstance(vocabulary, list):
            tokens = {text: id for id, (text, *_) in enumerate(vocabulary)}
        else:
            tokens = dict(vocabulary)
        return tokens | {token["content"]: token["id"] for token in whole.get("added_tokens", ())}


def _content(token: Any) -> Any:
    """The text of a special token, which some files wrap."""
    return token.get("content") if isinstance(token, dict) else token
