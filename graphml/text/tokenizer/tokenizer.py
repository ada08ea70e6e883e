"""The tokenizer of one vocabulary: text to ids and back, with the encoder of its kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

from graphml.errors import TokenizerError
from graphml.options.argument_checks import items_of, text_of, token_id
from graphml.options.keyword_arguments import named_arguments
from graphml.other_attributes import NamesOthers
from graphml.system.notebook_html import html_table
from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.pieces import Pieces
from graphml.text.tokenizer.streaming import Decoding, Stream
from graphml.text.tokenizer.vocabulary import NO_VOCABULARY_TEXT, PREFIX, Vocabulary, lengths_by_first

SPACES = " \t\n\v\f\r"

Fragment = str | int
"""A part of the text, never empty, or the id of a special token."""


@dataclass(frozen=True)
class SpecialToken:
    """A token to look for. `left`, `right`: it includes the whitespace on that side."""

    text: str
    id: int
    left: bool
    right: bool


class SpecialTokens:
    """A set of tokens that split a text. Tokens that do not occur cost nothing."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        by_length = sorted(tokens, key=lambda token: -len(token.text.encode("utf-8", "surrogatepass")))
        self._tokens = {token.text: (rank, token) for rank, token in enumerate(by_length)}
        self._lengths = lengths = lengths_by_first(self._tokens)
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else None

    def split(self, text: str) -> list[Fragment]:
        """Return the text cut at its special tokens, in order."""
        fragments: list[Fragment] = [text] if text else []
        for token in self.occurring(text):
            cut: list[Fragment] = []
            for fragment in fragments:
                if isinstance(fragment, str):
                    _cut_out(fragment, token, cut)
                else:
                    cut.append(fragment)
            fragments = cut
        return fragments

    def occurring(self, text: str) -> list[SpecialToken]:
        """The tokens that occur anywhere in the text, overlapping ones too, longest first."""
        if self._first is None:
            return []
        by_rank: dict[int, SpecialToken] = {}
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths[text[start]]:
                entry = self._tokens.get(text[start : start + length])
                if entry is not None:
                    by_rank[entry[0]] = entry[1]
        return [by_rank[rank] for rank in sorted(by_rank)]


def _cut_out(text: str, token: SpecialToken, cut: list[Fragment]) -> None:
    start = 0
    while (at := text.find(token.text, start)) >= 0:
        before = text[start:at].rstrip(SPACES) if token.left else text[start:at]
        if before:
            cut.append(before)
        cut.append(token.id)
        start = at + len(token.text)
        while token.right and start < len(text) and text[start] in SPACES:
            start += 1
    if start < len(text):
        cut.append(text[start:])


def special_tokens(vocabulary: Vocabulary, hidden: bool) -> SpecialTokens:
    """Return the vocabulary's user-defined tokens, and with `hidden` also control and unknown ones."""
    marks = vocabulary.attributes
    wanted = (marks & attributes.SPECIAL) != 0
    if not hidden:
        wanted &= (marks & attributes.HIDDEN) == 0
    return SpecialTokens(
        SpecialToken(
            vocabulary.texts[index],
            index,
            bool(marks[index] & attributes.LSTRIP),
            bool(marks[index] & attributes.RSTRIP),
        )
        for index in wanted.nonzero()[0].tolist()
    )


class Encoder(Protocol):
    """Turns text without special tokens into ids."""

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; `after_special`: it begins the text or follows a special token."""
        ...


class TokenRows(list[tuple[int, str]]):
    """Tokens as rows (id, quoted text)."""

    def _repr_html_(self) -> str:
        return html_table(f"{len(self)} tokens", ("id", "text"), self)


class InputIds(list[Any]):
    """Ids of a text, or lists of them; `input_ids`, their name in transformers, are themselves."""

    def __getitem__(self, key: Any) -> Any:
        return self if key == "input_ids" else super().__getitem__(key)

    @property
    def input_ids(self) -> InputIds:
        """The same."""
        return self


class Tokenizer(NamesOthers):
    """Text to token ids and back, with the results of llama.cpp for the same vocabulary.

    `n_vocab`, `vocab_size` and `len` are how many ids there are.
    `bos_id`, `eos_id` (also `bos`, `eos`) and `eot` are ids or None; `end_tokens` are all ids that end a
    generation; `fill_tokens` those for filling in the middle, by role (`Roles.fill`); `pre` is the name of
    the pre-tokenizer, empty for kinds without one. Safe to share between threads.
    """

    _made_by: ClassVar = "graphml.load_tokenizer(path)"
    _instead: ClassVar = {
        "tokenize": "encode(text) for ids, rows(text) for their texts",
        **dict.fromkeys(("batch_encode_plus", "encode_plus"), "tokenizer(texts)"),
        "convert_tokens_to_string": "decode(ids)", "convert_tokens_to_ids": "token_to_id(token)",
        "convert_ids_to_tokens": "piece(id) or rows(ids)",
        **dict.fromkeys(("get_vocab", "vocab"), "n_vocab and piece(id)"), "pad_token_id": "eos_id",
        "apply_chat_template": "Model.template.render(messages), or Model.prompt_ids(messages) for ids",
        "chat_template": "Model.template",
        **dict.fromkeys(("all_special_ids", "special_tokens", "special_ids"), "is_special(id)"),
        **dict.fromkeys(("unk_token_id", "unk_token", "pad_token"), "is_special(id), piece(id)"),
        "model_max_length": "Model.n_ctx",
    }  # fmt: skip
    _same: ClassVar = {
        "eos_token_id": "eos_id", "bos_token_id": "bos_id", "id_to_token": "piece", "detokenize": "decode",
    }  # fmt: skip

    def __repr__(self) -> str:
        pre = f", {self.pre}" if self.pre else ""
        return f"Tokenizer({self.n_vocab} tokens{pre}, eos_id {self.eos_id})"

    def __init__(self, vocabulary: Vocabulary, encoder: Encoder | None) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._pieces = Pieces(vocabulary)
        flags = vocabulary.flags
        self._decoding = Decoding(self._pieces, flags.add_space_prefix, flags.clean_spaces)
        self.n_vocab = self.vocab_size = vocabulary.n_vocab
        self.kind = vocabulary.kind
        self.pre = vocabulary.pre_name if vocabulary.pre is not None else ""
        self.bos = vocabulary.roles.bos
        self.eos = vocabulary.roles.eos
        self.eot = vocabulary.roles.eot
        self.bos_id, self.eos_id = self.bos, self.eos
        self.end_tokens = vocabulary.roles.ends
        self.fill_tokens = dict(vocabulary.roles.fill)

    def __len__(self) -> int:
        return self.n_vocab

    @named_arguments
    def encode(self, text: str, add_special: bool = True, parse_special: bool | None = None) -> list[int]:
        """Return the ids of a text.

        `add_special` adds the vocabulary's tokens around a text (begin, end, separator tokens).
        `parse_special` finds control tokens that the text spells, such as <|im_start|>; without it they
        are text like any other; None: not found, but found by the tokenizer of a tokenizer.json, whose
        library has it so. User-defined tokens are found in either case. Lone surrogates count as
        U+FFFD. UsageError for a value that is no text; TokenizerError if a token that must be added is
        missing, or a character cannot be encoded.
        """
        if self._encoder is None:
            raise TokenizerError(NO_VOCABULARY_TEXT)
        ids = self._before() if add_special else []
        after_special = True
        finder = self._all_special if parse_special else self._visible_special
        for fragment in finder.split(well_formed(text_of("text", text))):
            if isinstance(fragment, str):
                ids += self._encoder.encode(fragment, after_special)
                after_special = False
            else:
                ids.append(fragment)
                after_special = True
        if add_special:
            ids += self._after()
        return ids

    def __call__(self, text: str | Iterable[str], *args: Any, **kwargs: Any) -> Any:
        """The ids of a text, as of `encode`, or of each of several; their `["input_ids"]` is themselves.

        As tokenizers of transformers are called.
        """
        if isinstance(text, str):
            return InputIds(self.encode(text, *args, **kwargs))
        texts = items_of("text", text, "a text or texts")
        return InputIds(self.encode(each, *args, **kwargs) for each in texts)

    def batch_decode(self, texts: Iterable[Iterable[int]], skip_special: bool = False) -> list[str]:
        """The texts of several lists of ids."""
        return [self.decode(ids, skip_special) for ids in texts]

    def token_to_id(self, token: str) -> int | None:
        """The id of the one token whose text this is, such as <|im_end|>; None where there is none."""
        ids = self.encode(token, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    @property
    def bos_token(self) -> str | None:
        """The text of the begin token; None for none."""
        return None if self.bos is None else self.piece(self.bos)

    @property
    def eos_token(self) -> str | None:
        """The text of the token that ends a text; None for none."""
        return None if self.eos is None else self.piece(self.eos)

    def pair(self, query: str, text: str) -> list[int]:
        """Return the ids of two texts in one sequence, with the vocabulary's tokens around them.

        The same as llama.cpp's for reranking. Errors like `encode`.
        """
        first, second = self.encode(query, add_special=False), self.encode(text, add_special=False)
        between = self._after()
        if self._vocabulary.flags.add_sep and self._vocabulary.kind != "wordpiece":
            between = [*between, _present(self._vocabulary.roles.separator, "seperator")]
        return [*self._before(), *first, *between, *second, *self._after()]

    def pair_kinds(self, query: str, text: str) -> list[int]:
        """Return the kind of each id of `pair`: 1 for what counts as the second text, where it is said."""
        return [0] * len(self.pair(query, text))

    @named_arguments
    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of ids; invalid UTF-8 becomes U+FFFD.

        `skip_special` omits control and unknown tokens. As in llama.cpp, a vocabulary that puts a space
        before a text drops that space only at the very first id: after a begin token it stays.
        """
        every = items_of("ids", ids, "a sequence of token ids")
        return self._decoding.decode(map(token_id, every), skip_special)

    def stream(self, skip_special: bool = False, shown: frozenset[int] = frozenset()) -> Stream:
        """Return a decoder that takes one id at a time and never returns half a character.

        shown: control tokens that have their text nevertheless.
        """
        return Stream(self._decoding, skip_special, shown)

    def piece(self, token: int) -> str:
        """Return the text of one token; invalid UTF-8 becomes U+FFFD."""
        return self.piece_bytes(token).decode("utf-8", "replace")

    def quoted(self, token: int) -> str:
        """The text of one token in quotes; its bytes, b'...', where they are no whole characters."""
        raw = self.piece_bytes(token)
        try:
            return repr(raw.decode())
        except UnicodeDecodeError:
            return repr(raw)

    def rows(self, text: str | Iterable[int]) -> TokenRows:
        """The tokens of a text, or ids, as rows (id, quoted text), which a notebook shows as a table."""
        ids = self.encode(text) if isinstance(text, str) else items_of("ids", text, "a text or token ids")
        return TokenRows((token_id(each), self.quoted(each)) for each in ids)

    def piece_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, which need not be whole characters."""
        return self._pieces.bytes_of(token_id(token))

    def first_bytes(self, token: int) -> bytes:
        """Return the bytes of one token that is a text of its own, without the space put before a text."""
        return self._decoding.decode_bytes((token_id(token),), skip_special=False)

    def is_special(self, token: int) -> bool:
        """Whether it is a control or unknown token, which `skip_special` omits."""
        return self._pieces.is_hidden(token_id(token))

    def spelled_controls(self, text: str) -> set[str]:
        """The control and unknown tokens that a text spells, as texts; nothing is encoded."""
        parts = self._all_special.split(well_formed(text_of("text", text)))
        return {self.piece(part) for part in parts if isinstance(part, int) and self.is_special(part)} - {""}

    def tokens_within(self, text: str) -> dict[str, int]:
        """The control, unknown and user-defined tokens in a text, overlapping ones too, by their texts."""
        return {token.text: token.id for token in self._all_special.occurring(text)}

    @cached_property
    def longest_token(self) -> int:
        """Bytes of its longest token."""
        return max((len(self.piece_bytes(token)) for token in range(self.n_vocab)), default=0)

    @cached_property
    def _all_special(self) -> SpecialTokens:
        return special_tokens(self._vocabulary, hidden=True)

    @cached_property
    def _visible_special(self) -> SpecialTokens:
        return special_tokens(self._vocabulary, hidden=False)

    def _before(self) -> list[int]:
        wanted = self._vocabulary.flags.add_bos or self._vocabulary.kind == "wordpiece"
        return [_present(self.bos, "bos")] if wanted else []

    def _after(self) -> list[int]:
        if self._vocabulary.kind == "wordpiece":
            return [_present(self._vocabulary.roles.separator, "seperator")]
        return [_present(self.eos, "eos")] if self._vocabulary.flags.add_eos else []


def _present(token: int | None, role: str) -> int:
    if token is None:
        raise TokenizerError(
            f"add_special: the vocabulary wants its {role} token, {PREFIX}{role}_token_id names none in range"
        )
    return token


def well_formed(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which are never intended."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
