"""The vocabulary of a folder in GGUF's kinds, by which llama.cpp encodes: tokens, scores, merges, `pre`.

What comes out encodes texts of many kinds and is refused where an id differs from the folder's. Knows
tokenizer.json and GGUF's keys; nothing of weights.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphml.authoring.llama_cpp.terms import typed
from graphml.errors import GraphmlError, UsageError
from graphml.loading.huggingface.sentence_modules import SCORED
from graphml.loading.huggingface.tokenizer_files import CONTROL, NORMAL, UNKNOWN, sentencepiece_metadata
from graphml.text.tokenizer.huggingface import KEY
from graphml.text.tokenizer.pieces import LETTER_BYTES
from graphml.text.tokenizer.pre_tokenizers import PRE_TOKENIZERS, split
from graphml.text.tokenizer.tokenizer import Tokenizer
from graphml.text.tokenizer.tokenizer_loading import load_tokenizer
from graphml.text.tokenizer.vocabulary import BYTE_LEVEL, PREFIX
from graphml.weights import Metadata, ModelFile
from graphml.weights.metadata import StoredValue, stored

Values = dict[str, StoredValue]
TEXTS = (
    "Hello, world!", "hello world, it's what we'll do; they'd say I'VE DONE IT", " leading",
    "two  spaces",
    "   three and more    in between     five", "trailing  ", "tabs\tand\t\tmore",
    "line\nnext\n\nparagraph\n",
    "  indented\n    more\n\n\n\ttab\r\nwindows", "1", "12", "123", "1234", "12345678 and 3.14159, 1,000,000",
    "a1b22c333", "f(x) = x**2; return [i for i in range(10) if i != 3]", "#include <stdio.h>\nint main() {}",
    "https://example.com/a?b=c&d=%20#e", "name_of_thing CamelCase snake_case ALLCAPS", "...!!! ?? -- --- ===",
    "\"quoted\" 'single' `tick` (paren) {brace} <tag/>",
    "caf\u00e9 na\u00efve \u00fcber stra\u00dfe",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "\u4f60\u597d\uff0c\u4e16\u754c\u3002123",
    "\u3053\u3093\u306b\u3061\u306f \u4e16\u754c \u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f600 \U0001f680\U0001f680", "x \u2014 y \u2026 z \u00a9 \u20ac5", "$5 + $6 = $11^2 ~ |a|",
)  # fmt: skip
"""What both tokenizers must encode alike."""
PREFERRED = (
    "llama-bpe", "gpt-2", "qwen2", "deepseek-v3", "command-r", "starcoder", "gpt-4o", "dbrx", "chatglm-bpe",
    "glm4", "qwen35", "tekken", "falcon", "bloom",
)  # fmt: skip
"""Of names that cut words alike, those that llama.cpp's own converter writes most."""
LIBRARY = "tokenizer.huggingface."
LOG = logging.getLogger(__name__)
_HANGUL = re.compile("[\uac00-\ud7a3]")
NOTHING = -1e6
"""The score of tokens that no pair becomes."""


def vocabulary_values(file: ModelFile, rows: int, pre: str | None = None) -> Values:
    """The keys `tokenizer.`; rows: of the embedding, which has one for each token.

    pre: the pre-tokenizer, in place of the one whose words are those of the folder, which is not compared.
    UsageError for a vocabulary that none of GGUF's kinds is.
    """
    metadata = file.metadata
    kept = {key: typed(key, metadata, key) for key in metadata if key.startswith("tokenizer.")}
    model = metadata.text(PREFIX + "model", "")
    if pre is not None and model != "huggingface":
        raise UsageError(
            f"--pre {pre}: wanted for a vocabulary of byte pairs; {file.path} has another, or none"
        )
    if not model:
        return {**kept, PREFIX + "model": stored("no_vocab")}
    if model == "huggingface":
        whole = json.loads(metadata.text(KEY))
        kept = {key: value for key, value in kept.items() if not key.startswith(LIBRARY)}
        kept |= _of_library(file, whole, kept, pre)
        if pre is None:
            _compare(file, kept)
    n_tokens = kept[PREFIX + "tokens"].count or 0
    if n_tokens > rows:
        raise _refused(file, f"wanted at most {rows} tokens, as the embedding has rows; got {n_tokens}")
    kept.setdefault(PREFIX + "pre", stored("default"))
    return kept


def _refused(file: ModelFile, why: str) -> UsageError:
    return UsageError(f"{file.path}: convert: no vocabulary of a GGUF file encodes as tokenizer.json: {why}")


def _of_library(file: ModelFile, whole: Mapping[str, Any], kept: Values, pre: str | None) -> Values:
    """The keys of the kind of a tokenizer.json."""
    model = whole["model"]
    kind = str(model.get("type") or ("BPE" if "merges" in model else ""))
    tokens: list[str] = kept[PREFIX + "tokens"].read(None)
    around = _around(file, whole)
    if kind == "BPE" and file.metadata.boolean(BYTE_LEVEL, False):
        return {**around, PREFIX + "model": stored("gpt2"), **_merges(model), **_pre(file, whole, pre)}
    if pre is not None:
        raise UsageError(f"--pre {pre}: wanted for a vocabulary of byte pairs; tokenizer.json has another")
    if kind == "BPE":
        return {**around, **_pairs(file, whole, tokens)}
    if kind == "Unigram":
        return {**around, **_unigram(whole, kept)}
    if kind == "WordPiece":
        return {**around, **_words(file, whole, kept, around)}
    raise _refused(file, f"its model is {kind[:40]!r}: wanted BPE, Unigram or WordPiece")


def _library(whole: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer as Library  # not needed for other files, and slow to import

    return Library.from_str(json.dumps(whole))


def _around(file: ModelFile, whole: Mapping[str, Any]) -> Values:
    """Which tokens are put around a text: a begin and an end, or none."""
    library = _library(whole)
    library.no_truncation()
    library.no_padding()
    plain, full = (library.encode("a", add_special_tokens=special).ids for special in (False, True))
    before, behind = _beside(full, plain)
    if len(before) > 1 or len(behind) > 1:
        raise _refused(file, f"it puts {len(before)} tokens before a text and {len(behind)} behind it")
    values: Values = {}
    for ids, name, flag in ((before, "bos", "add_bos_token"), (behind, "eos", "add_eos_token")):
        values[PREFIX + flag] = stored(bool(ids))
        if ids:
            values[f"{PREFIX}{name}_token_id"] = stored(ids[0], "u32")
    return values | _between(library, behind)


def _beside(ids: list[int], inner: list[int]) -> tuple[list[int], list[int]]:
    """What is before and behind the first place of some ids."""
    at = next((i for i in range(len(ids) + 1) if ids[i : i + len(inner)] == inner), len(ids))
    return ids[:at], ids[at + len(inner) :]


def _between(library: Any, behind: list[int]) -> Values:
    """The separator of two texts, where it follows the token that is behind each text."""
    first, second = (library.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    pair = library.encode("a", "b").ids
    middle, _ = _beside(_beside(pair, first)[1], second)
    follows = len(behind) == 1 and middle == [*behind, *middle[1:]] and len(middle) == 1 + len(behind)
    values: Values = {PREFIX + "add_sep_token": stored(follows)}
    if follows:
        values[PREFIX + "seperator_token_id"] = stored(middle[1], "u32")
    return values


def _merges(model: Mapping[str, Any]) -> Values:
    pairs = [merge if isinstance(merge, list) else merge.split(" ", 1) for merge in model["merges"]]
    merges = [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in pairs]
    return {PREFIX + "merges": stored(merges, "string")}


def _pre(file: ModelFile, whole: Mapping[str, Any], stated: str | None) -> Values:
    """The pre-tokenizer that cuts all texts into the words of the folder's."""
    if stated is not None:
        return {PREFIX + "pre": stored(stated)}
    library = _library(whole)
    ignores = bool(whole["model"].get("ignore_merges"))
    cut = library.pre_tokenizer
    wanted = {text: _words_of(cut, text) for text in TEXTS}
    names = [*PREFERRED, *(name for name in PRE_TOKENIZERS if name not in PREFERRED)]
    nearest = (0, "", "")
    for name in names:
        rules = PRE_TOKENIZERS[name]
        if rules.ignore_merges != ignores or not rules.byte_level:
            continue
        cuts = ([word.encode() for word in split(text, rules.steps)] == wanted[text] for text in TEXTS)
        alike = next((index for index, is_same in enumerate(cuts) if not is_same), len(TEXTS))
        if alike == len(TEXTS):
            return {PREFIX + "pre": stored(name)}
        nearest = max(nearest, (alike, name, TEXTS[alike]))
    raise _refused(
        file, f"no pre-tokenizer cuts words as it does, {nearest[1]} not {nearest[2][:60]!r}; --pre names one"
    )


def _words_of(cut: Any, text: str) -> list[bytes]:
    """The bytes of the words of a text."""
    if cut is None:
        return [text.encode()]
    pieces = [piece for piece, _ in cut.pre_tokenize_str(text)]
    return [bytes(LETTER_BYTES[letter] for letter in piece) for piece in pieces]


def _pairs(file: ModelFile, whole: Mapping[str, Any], tokens: Sequence[str]) -> Values:
    """Pairs of characters with bytes for what has no token: by scores, from tokenizer.model where it is."""
    path = file.path / "tokenizer.model"
    spaced = {PREFIX + "add_space_prefix": stored(_puts_space(whole))}
    values: Values = {PREFIX + "model": stored("llama"), **spaced}
    if path.is_file():
        own = sentencepiece_metadata(path, {}, 0)
        pieces: list[str] = own[PREFIX + "tokens"].read(None)
        scores: list[float] = own[PREFIX + "scores"].read(None)
        by_text = dict(zip(pieces, scores, strict=True))
        return {**values, PREFIX + "scores": stored([by_text.get(t, NOTHING) for t in tokens], "f32")}
    if _gemma4(whole):
        return {PREFIX + "model": stored("gemma4"), **spaced, **_merges(whole["model"])}
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(whole["model"]["merges"]):
        ranks.setdefault("".join(merge if isinstance(merge, list) else merge.split(" ", 1)), rank)
    scored = [-float(ranks[text]) if text in ranks else NOTHING for text in tokens]
    return {**values, PREFIX + "scores": stored(scored, "f32")}


def _gemma4(whole: Mapping[str, Any]) -> bool:
    """Whether texts are cut, which pairs by scores never are."""
    return (whole.get("pre_tokenizer") or {}).get("type") == "Split"


def _puts_space(whole: Mapping[str, Any]) -> bool:
    """Whether a space comes before a text."""
    return _puts(whole.get("normalizer")) or _puts(whole.get("pre_tokenizer"))


def _steps(step: Any) -> Iterator[Mapping[str, Any]]:
    """A step of a normaliser or a pre-tokenizer, and those of a sequence."""
    parts = [step, *((step or {}).get("normalizers") or []), *((step or {}).get("pretokenizers") or [])]
    yield from (of for of in parts if isinstance(of, dict))


def _puts(step: Any) -> bool:
    for part in _steps(step):
        if part.get("type") == "Prepend":
            return True
        if part.get("type") == "Metaspace":
            is_put = part.get("prepend_scheme", "always") != "never"
            return is_put and bool(part.get("add_prefix_space", True))
    return False


def _unigram(whole: Mapping[str, Any], kept: Values) -> Values:
    tokens: list[str] = kept[PREFIX + "tokens"].read(None)
    scores = {text: float(score) for text, score in whole["model"]["vocab"]}
    charsmap = next(_charsmaps(whole.get("normalizer")), None)
    merges = any(part.get("type") == "WhitespaceSplit" for part in _steps(whole.get("pre_tokenizer")))
    values = {
        PREFIX + "model": stored("t5"),
        PREFIX + "scores": stored([scores.get(text, -1000.0) for text in tokens], "f32"),
        PREFIX + "add_space_prefix": stored(_puts_space(whole)),
        PREFIX + "remove_extra_whitespaces": stored(charsmap is not None or merges),
    }
    unknown = whole["model"].get("unk_id")
    if unknown is not None:
        types: list[int] = list(kept[PREFIX + "token_type"].read(None))
        types[unknown] = UNKNOWN
        values[PREFIX + "token_type"] = stored(types, "i32")
        values[PREFIX + "unknown_token_id"] = stored(unknown, "u32")
    if charsmap is not None:
        values[PREFIX + "precompiled_charsmap"] = stored([*base64.b64decode(charsmap)], "u8")
    return values


def _charsmaps(step: Any) -> Iterator[str]:
    if isinstance(step, dict):
        if step.get("precompiled_charsmap"):
            yield step["precompiled_charsmap"]
        for part in step.get("normalizers") or []:
            yield from _charsmaps(part)


def _words(file: ModelFile, whole: Mapping[str, Any], kept: Values, around: Values) -> Values:
    """WordPiece: the start of a word is marked, what is within a word is not; a separator ends texts."""
    inner = str(whole["model"].get("continuing_subword_prefix", "##"))
    tokens: list[str] = kept[PREFIX + "tokens"].read(None)
    types: list[int] = kept[PREFIX + "token_type"].read(None)
    marked = [
        text if kind != NORMAL else text.removeprefix(inner) if text.startswith(inner) else f"\u2581{text}"
        for text, kind in zip(tokens, types, strict=True)
    ]
    steps = [*_steps(whole.get("normalizer"))]
    of_bert: Mapping[str, Any] = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lowercase = bool(of_bert.get("lowercase", False))
    accents = of_bert.get("strip_accents")
    accents = lowercase if accents is None else bool(accents)
    accents = accents or any(step.get("type") == "StripAccents" for step in steps)
    lowercase = lowercase or any(step.get("type") == "Lowercase" for step in steps)
    end = around.get(PREFIX + "eos_token_id")
    roles: Values = {} if end is None else {PREFIX + "seperator_token_id": end}
    unknown = str(whole["model"].get("unk_token", ""))
    if unknown in tokens:
        roles[PREFIX + "unknown_token_id"] = stored(tokens.index(unknown), "u32")
    return {
        **roles,
        PREFIX + "add_eos_token": stored(False),
        PREFIX + "add_sep_token": stored(end is not None),
        PREFIX + "model": stored("bert"),
        PREFIX + "tokens": stored(marked),
        PREFIX + "normalizer.lowercase": stored(lowercase),
        PREFIX + "normalizer.strip_accents": stored(accents),
    }


def _compare(file: ModelFile, values: Values) -> None:
    """Refuse a vocabulary that encodes a text otherwise than the folder's."""
    before = load_tokenizer(file.metadata)
    try:
        after = load_tokenizer(Metadata(file.path, {**values, **_architecture(file)}))
    except GraphmlError as error:
        raise _refused(file, str(error)) from None
    strips = after.kind == "wordpiece" and values[PREFIX + "normalizer.strip_accents"].read(None)
    if strips:
        LOG.warning(
            "%s: llama.cpp strips accents by the first character of a decomposition: the written file has "
            "other ids for Hangul than tokenizer.json, as there",
            file.path,
        )
    for text in TEXTS:
        if not (strips and _HANGUL.search(text)):
            _compare_text(file, before, after, text, False)
    for text in _with_control_tokens(values):
        _compare_text(file, before, after, text, True)
    own = file.metadata.text("general.architecture")
    if file.metadata.integer(f"{own}.pooling_type", 0) == SCORED:
        _compare_pair(file, before, after)


def _compare_pair(file: ModelFile, before: Tokenizer, after: Tokenizer) -> None:
    """Refuse other tokens around and between two texts, of a model that scores them."""
    wanted, came = (of.pair(*TEXTS[:2]) for of in (before, after))
    if wanted != came:
        raise _refused(file, f"a pair of texts: wanted ids {str(wanted)[:120]}; got {str(came)[:120]}")


def _compare_text(file: ModelFile, before: Tokenizer, after: Tokenizer, text: str, parse: bool) -> None:
    wanted, came = (of.encode(text, add_special=True, parse_special=parse) for of in (before, after))
    if wanted != came:
        raise _refused(file, f"{text!r:.80}: wanted ids {str(wanted)[:120]}; got {str(came)[:120]}")


def _with_control_tokens(values: Values) -> Iterator[str]:
    """Texts in which control tokens are, between words, at most a few."""
    tokens, types = (values[PREFIX + name].read(None) for name in ("tokens", "token_type"))
    controls = [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    for text in controls[:4]:
        yield f"word{text}word"


def _architecture(file: ModelFile) -> Values:
    return {key: stored(file.metadata.text(key)) for key in ("general.architecture", "general.name")}
