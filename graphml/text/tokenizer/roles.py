"""Roles of special tokens (begin, end, separator, ...): from the metadata's ids, else from the tokens' texts.

The lists of texts are llama.cpp's. Files often have another type for a token that looks like control text;
it is corrected here like there. If several texts could be the end of a turn, the first of the list is used.
Knows nothing of encoding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.pre_tokenizers import PreTokenizer
from graphml.weights import Metadata

END_OF_TURN: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
LOG = logging.getLogger(__name__)
END_TOKENS: Final = "tokenizer.ggml.end_token_ids"
"""All ends, of folders whose generation_config.json has more than GGUF has roles for."""
END_OF_MESSAGE: Final = ("<|eom_id|>",)
# Fill in the middle: each role's texts.
FILL: Final = {
    "prefix": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "middle": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "separator": ("<|file_sep|>",),
}  # fmt: skip
FILL_KEYS: Final = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repository": ("fim_rep_token_id",),
    "separator": ("fim_sep_token_id",),
}
FILL_ENDS: Final = ("pad", "repository", "separator")
END_OF_GENERATION: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>",
    "[e~[",
)  # fmt: skip
ALWAYS_SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# model -> begin, end, unknown, separator, pad, mask: defaults if the file names none.
DEFAULTS: Final[Mapping[str, tuple[int | None, ...]]] = {
    "llama": (1, 2, 0, None, None, None),
    "bert": (101, None, 100, 102, 0, 103),
    "gpt2": (11, 11, None, None, None, None),
    "whitespace": (11, 11, None, None, None, None),
    "gemma4": (None, None, None, None, None, None),
    "t5": (None, 1, 2, None, 0, None),
    "rwkv": (None, None, None, None, None, None),
    "plamo2": (1, 2, 0, None, 3, None),
    "hybriddna": (11, 11, None, None, None, None),
    "huggingface": (None, None, None, None, None, None),
}


@dataclass(frozen=True)
class Roles:
    """Ids of special tokens, None where a vocabulary has no such token; `ends` stop a generation.

    `fill` holds the fill-in-the-middle tokens by role: prefix, suffix, middle, pad, repository, separator.
    """

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    separator: int | None = None
    pad: int | None = None
    mask: int | None = None
    eot: int | None = None
    eom: int | None = None
    ends: frozenset[int] = frozenset()
    fill: tuple[tuple[str, int], ...] = ()


def assign_roles(
    metadata: Metadata,
    model: str,
    rules: PreTokenizer | None,
    ids: Mapping[str, int],
    marks: npt.NDArray[np.uint16],
) -> Roles:
    """Find every role's token; corrects `marks` in place for tokens whose text shows another type."""
    bos, eos, unknown, separator, pad, mask = DEFAULTS[model]
    if rules is not None and not rules.default_bos:
        bos = None
    known = {
        name: _stated(metadata, keys, default, len(ids))
        for name, keys, default in (
            ("bos", ("bos_token_id",), bos),
            ("eos", ("eos_token_id",), eos),
            ("unknown", ("unknown_token_id",), unknown),
            ("separator", ("seperator_token_id",), separator),
            ("pad", ("padding_token_id",), pad),
            ("mask", ("mask_token_id",), mask),
            ("eot", ("eot_token_id",), None),
            ("eom", ("eom_token_id",), None),
        )
    }
    fill = {role: _stated(metadata, keys, None, len(ids)) for role, keys in FILL_KEYS.items()}
    known["eot"] = _by_text(known["eot"], END_OF_TURN, ids, marks)
    known["eom"] = _by_text(known["eom"], END_OF_MESSAGE, ids, marks)
    fill = {role: _by_text(fill[role], texts, ids, marks) for role, texts in FILL.items()}
    ends = _ends(known, fill, ids, marks)
    ends.update(_in_range(metadata, len(ids)))
    return Roles(
        **known,
        ends=frozenset(ends),
        fill=tuple((role, token) for role, token in fill.items() if token is not None),
    )


def _in_range(metadata: Metadata, count: int) -> Iterator[int]:
    """Further end tokens; a warning names those out of range."""
    for token in metadata.integers(END_TOKENS, []):
        if 0 <= token < count:
            yield token
        else:
            LOG.warning("%s: %s: wanted ids below %d; got %d", metadata.path, END_TOKENS, count, token)


def _stated(metadata: Metadata, keys: tuple[str, ...], default: int | None, count: int) -> int | None:
    """The last key's id that is in range, else the default if that is; a warning names one that is not."""
    role_id = default if default is not None and default < count else None
    for key in keys:
        stated = metadata.integer(f"tokenizer.ggml.{key}", None)
        if stated is not None and 0 <= stated < count:
            role_id = stated
        elif stated is not None:
            used = "none" if role_id is None else role_id
            LOG.warning(
                "%s: tokenizer.ggml.%s: wanted an id below %d; got %d: %s is taken, as in llama.cpp",
                metadata.path, key, count, stated, used,
            )  # fmt: skip
    return role_id


def _by_text(
    stated: int | None, texts: tuple[str, ...], ids: Mapping[str, int], marks: npt.NDArray[np.uint16]
) -> int | None:
    if stated is not None:
        return stated
    token = next((ids[text] for text in texts if text in ids), None)
    if token is not None:
        marks[token] |= attributes.CONTROL
    return token


def _ends(
    known: Mapping[str, int | None],
    fill: Mapping[str, int | None],
    ids: Mapping[str, int],
    marks: npt.NDArray[np.uint16],
) -> set[int]:
    ends = {token for role in FILL_ENDS if (token := fill[role]) is not None}
    for text in END_OF_GENERATION:
        if text in ids:
            ends.add(ids[text])
            marks[ids[text]] |= attributes.CONTROL
    for text in ALWAYS_SHOWN:
        if text in ids:
            marks[ids[text]] = attributes.USER_DEFINED
    ends.update(token for role in ("eos", "eot", "eom") if (token := known[role]) is not None)

    def is_end(text: str) -> bool:
        return ids.get(text) in ends

    # In these vocabularies "<|end|>" ends a message, not the answer.
    calls = is_end("<|call|>") or is_end("<|calls|>")
    if calls and (is_end("<|return|>") or is_end("<|flush|>")) and is_end("<|end|>"):
        ends.discard(ids["<|end|>"])
        marks[ids["<|end|>"]] = attributes.USER_DEFINED
    # In these "</s>" is text like any other.
    if is_end("</s>") and (is_end("<|tool_response>") or is_end("<|plamo:eos|>")):
        ends.discard(ids["</s>"])
        marks[ids["</s>"]] = attributes.NORMAL
    return ends
