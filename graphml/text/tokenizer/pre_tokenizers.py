"""Pre-tokenizers: splitting rules and flags of every `tokenizer.ggml.pre` that llama.cpp knows.

The expressions are those of the models' own tokenizer.json files as llama.cpp interprets them
(src/llama-vocab.cpp and src/unicode.cpp of llama-cpp-python 0.3.36): categories of letters beyond ASCII are
not distinguished. `split` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Final

from graphml.errors import TokenizerError, similar
from graphml.text.tokenizer.unicode_classes import WHITESPACE, category_members, reduce


@dataclass(frozen=True)
class Views:
    """One text in the forms that steps use; all have one element per character."""

    text: str

    @cached_property
    def spaced(self) -> str:
        r"""The text with whitespace beyond ASCII turned into \v."""
        return self.text if self.text.isascii() else _WIDE_SPACE.sub("\v", self.text)

    @cached_property
    def reduced(self) -> bytes:
        """The text as one byte per character, its category."""
        return reduce(self.text)

    @cached_property
    def reduced_han(self) -> bytes:
        """`reduced` with a byte of its own for Chinese characters."""
        return reduce(self.text, han=True)


Step = str | Callable[[Views, list[int]], list[int]]
"""An expression, or a function from the ends of the parts to the ends of smaller parts."""

_WIDE_SPACE = re.compile(f"[{''.join(map(chr, (space for space in WHITESPACE if space > 0x7F)))}]")
_DIGITS = re.compile(rb"[0-9]+")
_CATEGORY = re.compile(r"\\p\{(\w+)\}|\\.|[\[\]]", re.DOTALL)


def split(text: str, steps: Sequence[Step]) -> list[str]:
    """Return the words of a text: non-empty, in order, together the whole text."""
    views = Views(text)
    ends = [len(text)]
    for step in steps:
        ends = _isolate(views, ends, step) if isinstance(step, str) else step(views, ends)
    start = 0
    words = []
    for end in ends:
        words.append(text[start:end])
        start = end
    return words


def _isolate(views: Views, ends: list[int], expression: str) -> list[int]:
    """The ends of the parts after every match of the expression is split off."""
    find = _finder(views, expression)
    cut: list[int] = []
    start = 0
    for end in ends:
        for match in find(start, end):
            first, last = match.span()
            if first > start:
                cut.append(first)
            if last > first:
                cut.append(last)
            start = last
        if start < end:
            cut.append(end)
        start = end
    return cut


def _finder(views: Views, expression: str) -> Callable[[int, int], Iterable[re.Match[Any]]]:
    """A search between two positions, in the form of the text that the expression needs."""
    if r"\p{" not in expression:
        return partial(_plain_pattern(expression).finditer, views.spaced)
    subject = views.reduced_han if r"\p{Han}" in expression else views.reduced
    return partial(_category_pattern(expression).finditer, subject)


@cache
def _plain_pattern(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.ASCII)


@cache
def _category_pattern(expression: str) -> re.Pattern[bytes]:
    r"""Compile an expression for reduced texts, each \p{...} replaced by its members."""
    inside = False

    def expand(match: re.Match[str]) -> str:
        nonlocal inside
        whole, name = match.group(0), match.group(1)
        if name is not None:
            members = category_members(name)
            return members if inside else f"[{members}]"
        if whole in "[]":
            inside = whole == "["
        return whole

    return re.compile(_CATEGORY.sub(expand, expression).encode("latin-1"))


def numbers_by_thousands(views: Views, ends: list[int]) -> list[int]:
    r"""Split runs of \p{N} in threes counted from their end; text before a run stays with its first group."""
    runs = _category_pattern(r"\p{N}+")
    cut: list[int] = []
    start = 0
    for end in ends:
        for run in runs.finditer(views.reduced, start, end):
            first, start = run.span()
            cut.extend(range(first + ((start - first) % 3 or 3), start + 1, 3))
        if start < end:
            cut.append(end)
        start = end
    return cut


def digits_by_thousands(views: Views, ends: list[int]) -> list[int]:
    """Split wherever a multiple of three ASCII digits follows up to the end of their run."""
    cut: list[int] = []
    start = 0
    for end in ends:
        for run in _DIGITS.finditer(views.reduced, start, end):
            first, stop = run.span()
            cut.extend(at for at in range(first + (stop - first) % 3, stop, 3) if at > start)
        cut.append(end)
        start = end
    return cut


@dataclass(frozen=True)
class PreTokenizer:
    """How words are cut before merging.

    `ignore_merges`: a word that is a token is not split. `byte_level`: tokens spell bytes as GPT-2's letters,
    else they are plain text.
    `escape_spaces`: tokens have U+2581 for a space. `add_bos`: the default if the file does not set it.
    `whole_newlines`: a run of newlines that is a token is not split. `default_bos`: whether the id 11 is
    the begin token of a file that names none.
    """

    steps: tuple[Step, ...]
    ignore_merges: bool = False
    byte_level: bool = True
    escape_spaces: bool = False
    add_bos: bool = False
    force_bos: bool = False
    whole_newlines: bool = False
    default_bos: bool = True


_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_BLANKS}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_JAIS2 = (
    rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|\s{{512}}(?!\S)|\s{{256}}(?!\S)"
    r"|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
    rf"|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
_UFAKZEKA = rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_BLANKS}"
_MINICPM5 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_BLANKS}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)


def _cased(marks: str, contraction: str, numbers: str) -> str:
    r"""Words as `Aa`, `aa` or `AA`: a letter beyond ASCII counts as either case, as do `marks`."""
    start = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = rf"[\p{{LetterNotLower}}{marks}]", rf"[\p{{LetterNotUpper}}{marks}]"
    return (
        rf"{start}{upper}*{lower}+{contraction}|{start}{upper}+{lower}*{contraction}"
        rf"|{numbers}|{_SYMBOLS_SLASH}|{_BLANKS}"
    )


def _uncased(numbers: str) -> str:
    """Words in which both of the original's letter classes match any letter or mark."""
    word = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTION}?"
    return rf"{word}|{numbers}|{_SYMBOLS_SLASH}|{_BLANKS}"


_TEKKEN = _cased("", "", r"\p{N}")
_GPT4O = _cased("", _CONTRACTION + "?", r"\p{N}{1,3}")
_GRANITE_MULTI = _cased(r"\p{M}", _CONTRACTION + "?", r"\p{N}{1,3}")

_KIMI_K2 = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?\p{LetterNotHan}+"
    rf"{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"
)

_LINES = r"[^\n]+|\n+"
_NEWLINE = r"[\r\n]"
_ASCII_MARKED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK3 = (
    rf"{_ASCII_MARKED}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
_SPARK = (
    rf"{_ASCII_MARKED}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
    r"|[\r\n]|\s+(?!\S)|\s+"
)
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)

_FALCON_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_DEFAULT_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
_THREE_DIGITS = r"[0-9][0-9][0-9]"

GPT2: Final = PreTokenizer((_GPT2,))
DIGITS_GPT2: Final = PreTokenizer((r"\p{N}", _GPT2))
LLAMA3: Final = PreTokenizer((_LLAMA3,))
QWEN2: Final = PreTokenizer((_QWEN2,))
DEEPSEEK3: Final = PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
GPT4O: Final = PreTokenizer((_GPT4O,))
GEMMA4: Final = PreTokenizer(
    (_LINES,), byte_level=False, escape_spaces=True, force_bos=True, whole_newlines=True
)
TINY_AYA: Final = PreTokenizer((numbers_by_thousands, _uncased(r"\p{N}{1,3}")))
BAILING: Final = PreTokenizer((_BAILING,))
DEFAULT: Final = PreTokenizer((_DEFAULT_PUNCTUATION, _GPT2, r"\p{N}+", _THREE_DIGITS))


def _table() -> dict[str, PreTokenizer]:
    rows: list[tuple[str, PreTokenizer]] = [
        ("default", DEFAULT),
        ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True)),
        (
            "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            replace(LLAMA3, ignore_merges=True, add_bos=True),
        ),
        (
            "deepseek-llm",
            PreTokenizer(
                (_NEWLINE, _DEEPSEEK_LETTERS, _DEEPSEEK_PUNCTUATION, r"\s+\Z", _CJK_HANGUL, r"\p{N}+"),
            ),
        ),
        (
            "deepseek-coder",
            PreTokenizer((_NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, r"\p{N}")),
        ),
        ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", DEEPSEEK3),
        ("spark2_5", PreTokenizer((r"\p{N}{1,3}", _CJK, _SPARK, r"\p{N}"))),
        (
            "youtu",
            PreTokenizer((_YOUTU, _uncased(r"\p{N}")), ignore_merges=True),
        ),
        ("falcon", PreTokenizer((_FALCON_PUNCTUATION, _GPT2, _THREE_DIGITS))),
        (
            "mpt gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
            " jina-v1-en jina-v2-code roberta-bpe olmo jais exaone4",
            GPT2,
        ),
        ("trillion granite-docling", GPT2),
        ("starcoder refact codeshell exaone minerva-7b mellum2", DIGITS_GPT2),
        ("command-r smollm", DIGITS_GPT2),
        ("jais-2", PreTokenizer((_JAIS2,))),
        ("gemma4 granite-embed-multi-311m", GEMMA4),
        (
            "sarvam-moe",
            replace(GEMMA4, force_bos=False, whole_newlines=False),
        ),
        ("whitespace", PreTokenizer((r"\S+",), byte_level=False)),
        ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 solar-open", QWEN2),
        ("megrez stablelm2", QWEN2),
        ("qwen35", PreTokenizer((_QWEN35,))),
        ("laguna", PreTokenizer((_LINES, _QWEN2))),
        ("dbrx smaug-bpe", LLAMA3),
        ("chatglm-bpe", replace(LLAMA3, default_bos=False)),
        ("glm4 glm5", replace(LLAMA3, default_bos=False, ignore_merges=True)),
        ("poro-chat", PreTokenizer((_BLOOM,))),
        ("bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
        ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
        ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
        ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
        (
            "chameleon",
            PreTokenizer(
                (
                    r"<sentinel:[0-9]+>",
                    r"IMGIMG[A-I]{1,4}Z",
                    r"[\t\n]|    |  ",
                    r"\p{N}",
                    r"[\p{P}!-/:-@\[-`{-~]",
                    _GPT2,
                ),
                add_bos=True,
            ),
        ),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", GPT4O),
        (
            "granite-embed-multi-97m",
            PreTokenizer((_GRANITE_MULTI,), ignore_merges=True),
        ),
        ("tiny_aya cohere2moe", TINY_AYA),
        ("superbpe", PreTokenizer((r"\p{N}+", digits_by_thousands))),
        ("bailingmoe bailingmoe2 llada-moe", BAILING),
        ("seed-coder", PreTokenizer((_SEED,))),
        ("kimi-k2", PreTokenizer((_KIMI_K2,))),
        ("ufakzeka", PreTokenizer((_UFAKZEKA,))),
        ("afmoe", PreTokenizer((numbers_by_thousands, _ASIAN, _DEEPSEEK3))),
    ]
    return {name: pre_tokenizer for names, pre_tokenizer in rows for name in names.split()}


PRE_TOKENIZERS: Final = _table()


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of that name; TokenizerError names the nearest known ones if there is none."""
    entry = PRE_TOKENIZERS.get(name)
    if entry is None:
        nearest = similar(name[:64], PRE_TOKENIZERS) or sorted(PRE_TOKENIZERS)[:3]
        raise TokenizerError(
            f"tokenizer.ggml.pre = {name[:64]!r} is not a known pre-tokenizer; nearest known: "
            f"{', '.join(nearest)}. Give the argument pre= the name of a known one to use that instead"
        )
    return entry
