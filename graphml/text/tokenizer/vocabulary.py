"""A vocabulary from the metadata of a model file: tokens, their attributes, special ids and flags.

Follows llama.cpp's reading of the `tokenizer.ggml.*` keys, defaults included, and checks everything that
the encoders rely on: no token twice, ids in range, one score and type per token. Encodes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graphml.errors import TokenizerError, UsageError
from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer
from graphml.text.tokenizer.roles import Roles, assign_roles
from graphml.weights import Metadata

LOG = logging.getLogger(__name__)

PREFIX: Final = "tokenizer.ggml."
BYTE_LEVEL: Final = "tokenizer.huggingface.byte_level"  # whether tokens spell bytes as GPT-2's letters
# Metadata's model name -> kind of encoder.
KINDS: Final = {
    "llama": "spm",
    "gpt2": "bpe",
    "gemma4": "bpe",
    "whitespace": "bpe",
    "bert": "wordpiece",
    "t5": "unigram",
    "rwkv": "rwkv",
    "plamo2": "plamo2",
    "hybriddna": "bpe",
    "huggingface": "huggingface",
}
SCORED: Final = ("spm", "unigram", "plamo2")
NO_VOCABULARY: Final = ("no_vocab", "none")
NO_VOCABULARY_TEXT: Final = (
    f"the file says {PREFIX}model = 'none': it has no tokenizer, give and take token ids instead of text"
)
MAX_TOKEN_CHARACTERS: Final = 1 << 16


@dataclass(frozen=True)
class Flags:
    """The treatment of text around the encoder."""

    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    clean_spaces: bool
    escape_spaces: bool
    remove_extra_whitespaces: bool
    lowercase: bool
    strip_accents: bool
    add_sep: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The data for encoding and decoding.

    `n_vocab` is the number of tokens, even if the file has nothing else of them; `pre_name` is the name of
    the pre-tokenizer. `types` are the file's token types; `attributes` are made from them, corrected by the
    tokens' texts; both, and `scores`, have one element per token. `scores` are zeros if the
    file has none.
    """

    model: str
    kind: str
    n_vocab: int
    pre_name: str
    pre: PreTokenizer | None
    texts: Sequence[str]
    ids: Mapping[str, int]
    scores: npt.NDArray[np.float64]
    types: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.uint16]
    roles: Roles
    flags: Flags


def read_vocabulary(metadata: Metadata, pre: str | None) -> Vocabulary:
    """Read and check a vocabulary; `pre` overrides the file's pre-tokenizer.

    Raises TokenizerError for a kind that is unknown, an unknown pre-tokenizer and a
    vocabulary that is damaged; UsageError for `pre` if no pre-tokenizer is used.
    """
    model = metadata.text(PREFIX + "model")
    if model in NO_VOCABULARY:
        return _no_vocabulary(metadata, model)
    if model not in KINDS:
        known = ", ".join([*KINDS, *NO_VOCABULARY])
        raise TokenizerError(f"{PREFIX}model = {model[:64]!r} is unknown; known: {known}")
    kind = KINDS[model]
    name = _pre_name(metadata, model, kind, pre)
    rules = pre_tokenizer(name) if kind == "bpe" else None
    texts = _texts(metadata)
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        twice = next(text for index, text in enumerate(texts) if ids[text] != index)
        raise TokenizerError(f"{PREFIX}tokens: every token once is wanted, {twice[:64]!r} stands there twice")
    types = _types(metadata, len(texts))
    marks = attributes.FROM_TYPE[types]
    roles = assign_roles(metadata, model, rules, ids, marks)
    flags = _flags(metadata, kind, rules)
    _set_strips(metadata, name, ids, marks)
    scores = _scores(metadata, kind, len(texts))
    return Vocabulary(model, kind, len(texts), name, rules, texts, ids, scores, types, marks, roles, flags)


def _no_vocabulary(metadata: Metadata, model: str) -> Vocabulary:
    """A vocabulary of a known size without tokens."""
    architecture = metadata.text("general.architecture", "")
    count = metadata.integer(f"{architecture}.vocab_size", 0)
    nothing, scores = np.zeros(0, np.int64), np.zeros(0)
    flags = Flags(False, False, False, False, False, False, False, False)
    return Vocabulary(
        model, "none", count, "", None, [], {}, scores, nothing, nothing.astype(np.uint16), Roles(), flags
    )


def _pre_name(metadata: Metadata, model: str, kind: str, override: str | None) -> str:
    """The name of the pre-tokenizer; for kinds without one, the file's value."""
    stated = metadata.text(PREFIX + "pre", "")
    if kind != "bpe":
        if override is not None:
            raise UsageError(
                f"pre={override!r}: only byte-pair vocabularies are cut by a pre-tokenizer, "
                f"this one has {PREFIX}model = {model!r}"
            )
        return stated
    if override is not None:
        return override
    if model == "gemma4":
        return "gemma4"
    if not stated:
        LOG.warning("the file has no %spre: cutting words as 'default' does, which is rarely right", PREFIX)
        return "default"
    return stated


def _texts(metadata: Metadata) -> list[str]:
    texts = metadata.texts(PREFIX + "tokens")
    if not texts:
        raise TokenizerError(f"{PREFIX}tokens: at least one token is wanted, the array is empty")
    if "" in texts:
        texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
    longest = max(map(len, texts))
    if longest > MAX_TOKEN_CHARACTERS:
        raise TokenizerError(
            f"{PREFIX}tokens: at most {MAX_TOKEN_CHARACTERS} characters per token, one has {longest}"
        )
    return texts


def _types(metadata: Metadata, count: int) -> npt.NDArray[np.int64]:
    key = PREFIX + "token_type"
    if not metadata.has(key):
        return np.full(count, attributes.TYPE_NORMAL, np.int64)
    types = np.asarray(metadata.integers(key)[:count], np.int64)
    if len(types) < count:
        raise TokenizerError(f"{key}: {count} types, one per token, are wanted, got {len(types)}")
    known = (types >= 0) & (types < len(attributes.FROM_TYPE))
    return np.where(known, types, 0)


def _scores(metadata: Metadata, kind: str, count: int) -> npt.NDArray[np.float64]:
    key = PREFIX + "scores"
    if not metadata.has(key):
        if kind in SCORED:
            LOG.warning("the file has no %s: all tokens count as 0, as in llama.cpp", key)
        return np.zeros(count)
    scores = np.asarray(metadata.numbers(key)[:count], np.float64)
    if len(scores) < count:
        raise TokenizerError(f"{key}: {count} scores, one per token, are wanted, got {len(scores)}")
    if np.isnan(scores).any():
        index = int(np.isnan(scores).argmax())
        raise TokenizerError(f"{key}: numbers are wanted, score {index} is not a number")
    return scores


def _flags(metadata: Metadata, kind: str, rules: PreTokenizer | None) -> Flags:
    bare = kind in ("rwkv", "plamo2")  # llama.cpp adds nothing to these, whatever the file says
    add_bos = rules.add_bos if rules is not None else kind in ("spm", "wordpiece")
    add_bos = metadata.boolean(PREFIX + "add_bos_token", add_bos) and not bare
    lowercase = metadata.boolean(PREFIX + "normalizer.lowercase", kind not in ("bpe", "huggingface"))
    return Flags(
        add_bos=add_bos or (rules is not None and rules.force_bos),
        add_eos=metadata.boolean(PREFIX + "add_eos_token", kind == "unigram") and not bare,
        add_space_prefix=metadata.boolean(PREFIX + "add_space_prefix", kind == "spm"),
        clean_spaces=kind == "wordpiece",
        escape_spaces=rules.escape_spaces if rules is not None else not metadata.boolean(BYTE_LEVEL, False),
        remove_extra_whitespaces=metadata.boolean(PREFIX + "remove_extra_whitespaces", False),
        lowercase=lowercase,
        strip_accents=metadata.boolean(PREFIX + "normalizer.strip_accents", lowercase),
        add_sep=metadata.boolean(PREFIX + "add_sep_token", kind == "wordpiece"),
    )


def _set_strips(metadata: Metadata, pre: str, ids: Mapping[str, int], marks: npt.NDArray[np.uint16]) -> None:
    """Mark the tokens that include the whitespace beside them, which only their names show."""
    architecture = metadata.text("general.architecture", "")
    name = metadata.text("general.name", "").lower()
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")
    ):
        if "<mask>" in ids:
            marks[ids["<mask>"]] |= attributes.LSTRIP
    elif "phi-3" in name or "phi3" in name:
        marks[(marks & attributes.SPECIAL) != 0] |= attributes.RSTRIP
        if "</s>" in ids:
            marks[ids["</s>"]] |= attributes.RSTRIP
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            if text in ids:
                marks[ids[text]] &= ~attributes.RSTRIP
    elif "modern-bert" in name and "[MASK]" in ids:
        marks[ids["[MASK]"]] |= attributes.LSTRIP


def lengths_by_first(texts: Iterable[str]) -> dict[str, list[int]]:
    """First character -> lengths of the texts that begin with it, shortest first."""
    lengths: dict[str, set[int]] = {}
    for text in texts:
        lengths.setdefault(text[0], set()).add(len(text))
    return {first: sorted(sizes) for first, sizes in lengths.items()}
