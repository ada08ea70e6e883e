"""The structure that sampling parameters name, compiled for a tokenizer; the latest ones are kept.

Compiling has a thread of its own, never an engine's; whoever asks waits for it. For others than who calls the
library (`asked_by`) it waits for its turn, and what llguidance compiles is tried in a process first. Knows
parameters and structures.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates.moment import SamplerVocabulary
from graphml.sampling.schemas.schema_words import MOST_PATTERN
from graphml.sampling.schemas.time_limit import within_seconds
from graphml.sampling.settings.grammar_triggers import MARKER, SPELLED
from graphml.sampling.settings.params import LLAMA_CPP, STRUCTURES, SamplingParams
from graphml.sampling.structured.canonical_tokens import CanonicalTokens
from graphml.sampling.structured.compile_turns import TURNS, current_asker
from graphml.sampling.structured.forced_tokens import forced_tokens
from graphml.sampling.structured.gbnf_grammar import GbnfGrammar
from graphml.sampling.structured.gbnf_parser import parse_gbnf
from graphml.sampling.structured.lazy_matcher import LazyMatcher, Triggers
from graphml.sampling.structured.llguidance_structure import LlguidanceStructure, library
from graphml.sampling.structured.matcher import Matcher, Structure
from graphml.sampling.structured.number_ends import NumberEnds, number_ends
from graphml.sampling.structured.opened_tokens import tokens_of
from graphml.sampling.structured.packed_masks import Bits, packed
from graphml.sampling.structured.reasoning_matcher import ReasoningMatcher
from graphml.sampling.structured.schema_structure import generated_structure, schema_of_text
from graphml.sampling.structured.token_bytes import Bools, TokenBytes
from graphml.sampling.structured.tried_structures import structure_bytes


class TextBegin:
    """See `Structure`. begin: the bytes; each byte of them needs a token that is it, or begins with it."""

    def __init__(self, begin: bytes, vocabulary: TokenBytes) -> None:
        self.text, self.vocabulary = begin, vocabulary
        usable = np.ones(vocabulary.n, bool)
        usable[list(vocabulary.special | vocabulary.end_tokens)] = False
        first = [piece[0] if piece else -1 for piece in vocabulary.pieces]
        self._first = np.where(usable, first, -1)
        self._masks: dict[int, Bools] = {len(begin): np.ones(vocabulary.n, bool)}
        self._bits: dict[int, Bits] = {}

    def begin(self) -> SpelledBytes:
        """The place before the first token."""
        return SpelledBytes(self, [0])

    def mask(self, at: int) -> Bools:
        """[n] the tokens that may come where so many bytes are spelled."""
        mask = self._masks.get(at)
        if mask is None:
            rest, pieces = self.text[at:], self.vocabulary.pieces
            near = np.flatnonzero(self._first == rest[0])
            fits = [pieces[i].startswith(rest) or rest.startswith(pieces[i]) for i in near.tolist()]
            mask = np.zeros(self.vocabulary.n, bool)
            mask[near[np.array(fits, bool)]] = True
            self._masks[at] = mask
        return mask

    def bits(self, at: int) -> Bits:
        """The same, a bit each."""
        if at not in self._bits:
            self._bits[at] = packed(self.mask(at))
        return self._bits[at]


class SpelledBytes:
    """How many bytes are spelled, after each of the tokens so far."""

    def __init__(self, of: TextBegin, spelled: list[int]) -> None:
        self._of, self._spelled = of, spelled

    def bits(self) -> Bits:
        """The tokens that may come next, a bit each."""
        return self._of.bits(self._spelled[-1])

    def forced_bytes(self) -> bytes:
        """None: which tokens spell the text is the model's choice."""
        return b""

    def walk(self, accepted: Sequence[int]) -> None:
        """None: which tokens spell the text is the model's choice."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        return bool(self._of.mask(self._spelled[-1])[token])

    def may_end(self) -> bool:
        """Whether all bytes are spelled."""
        return self._spelled[-1] == len(self._of.text)

    def accept(self, token: int) -> None:
        """Go on by a token that is allowed."""
        spelled = self._spelled[-1] + len(self._of.vocabulary.pieces[token])
        self._spelled.append(min(spelled, len(self._of.text)))

    def rewind(self, n: int) -> None:
        """Take back the last n tokens."""
        del self._spelled[len(self._spelled) - n :]

    def copy(self) -> SpelledBytes:
        """The same place, to go on separately."""
        return SpelledBytes(self._of, list(self._spelled))


KEPT, KEPT_BYTES = 64, 256 << 20
"""So many of the latest structures are kept, of so much memory together."""
BYTES_OF_CHAR: Final = 128
"""The memory of a structure for each character of its text, where it was not measured."""
MAX_TEXT: Final = 1 << 20
LARK: Final = "%llguidance"
"""A grammar whose first line begins so is Lark of llguidance, as in llama.cpp."""


class _Key(NamedTuple):
    tokens: TokenBytes
    name: str
    text: str | tuple[str, ...]


class _Compiled(NamedTuple):
    structure: Structure
    canonical: CanonicalTokens
    numbers: NumberEnds | None
    n_bytes: int


class _KeptStructures:
    """The latest structures, for any number of threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._latest: OrderedDict[_Key, _Compiled] = OrderedDict()

    def get(self, key: _Key) -> _Compiled | None:
        with self._lock:
            return self._latest.get(key)

    def add(self, key: _Key, compiled: _Compiled) -> None:
        with self._lock:
            self._latest[key] = compiled
            while (
                len(self._latest) > KEPT or sum(kept.n_bytes for kept in self._latest.values()) > KEPT_BYTES
            ):
                self._latest.popitem(last=False)


_STRUCTURES = _KeptStructures()


def matcher_of(params: SamplingParams, tokenizer: SamplerVocabulary | None) -> Matcher | None:
    """A matcher at the begin of a text, None where the parameters name no structure.

    UsageError for a structure that is wrong or not supported, or a model without a tokenizer.
    """
    name = next((structure for structure in STRUCTURES if getattr(params, structure)), None)
    limited = params.reasoning_budget >= 0
    if name is None and not limited:
        return None
    if tokenizer is None:
        raise UsageError(f"{name or 'reasoning_budget'}: wanted a model with a tokenizer, this one has none")
    tokens = tokens_of(tokenizer)
    inner = None if name is None else _structure_matcher(params, tokens, name)
    if not limited:
        return inner
    if params.reasoning_end is None:
        raise UsageError(
            "reasoning_budget: wanted a conversation, whose template says how reasoning is marked"
        )
    return ReasoningMatcher(inner, tokens, params.reasoning_end, params.reasoning_budget)


def _structure_matcher(params: SamplingParams, tokens: TokenBytes, name: str) -> Matcher:
    key = _Key(tokens, name, getattr(params, name))
    compiled = _STRUCTURES.get(key) or _kept(key)
    return _begun(params, compiled, tokens, name)


def _kept(key: _Key) -> _Compiled:
    """Compile a structure, and keep it; errors of `matcher_of`, BusyError."""
    asker = current_asker()
    if asker is None:
        compiled = within_seconds(key.name, lambda: _compiled(key, 0))
    else:
        with TURNS.turn(asker, _size(key)):
            if (compiled_meanwhile := _STRUCTURES.get(key)) is not None:
                return compiled_meanwhile
            n_bytes = structure_bytes(key.name, key.text, key.tokens) if _by_rust(key) else 0
            compiled = _compiled(key, n_bytes)
    _STRUCTURES.add(key, compiled)
    return compiled


def _size(key: _Key) -> int:
    return sum(map(len, [key.text] if isinstance(key.text, str) else key.text))


def _by_rust(key: _Key) -> bool:
    """Whether llguidance compiles it, and not we, who count as we go."""
    if key.name == "grammar":
        return isinstance(key.text, str) and key.text.startswith(LARK)
    return key.name != "begins_with"


def _has_schema(key: _Key) -> bool:
    """Whether JSON is written: by a schema, or in a grammar with one, as of calls."""
    return key.name == "json_schema" or (key.name in ("grammar", "lark") and "%json" in key.text)


def _compiled(key: _Key, n_bytes: int) -> _Compiled:
    structure = walked_structure(key.name, key.text, key.tokens)
    numbers = number_ends(key.tokens) if _has_schema(key) else None
    return _Compiled(
        structure, CanonicalTokens(key.tokens), numbers, max(n_bytes, BYTES_OF_CHAR * _size(key))
    )


def walked_structure(name: str, text: str | Sequence[str], tokens: TokenBytes) -> Structure:
    """As `compiled_structure`, with what its literals are read by: no step must wait for that."""
    structure = compiled_structure(name, text, tokens)
    structure.begin().walk(())
    return structure


def _begun(params: SamplingParams, compiled: _Compiled, tokens: TokenBytes, name: str) -> Matcher:
    """The matcher of a text, from its begin on, behind a text, or from a trigger on."""
    canonical = None if params.rng == LLAMA_CPP else compiled.canonical

    def matcher() -> Matcher:
        return Matcher(compiled.structure.begin(), tokens, name, canonical, compiled.numbers)

    grammar_triggers = params.grammar_triggers
    spelled = {
        trigger.token: trigger.value.encode() for trigger in grammar_triggers if trigger.kind == SPELLED
    }

    def lazy() -> Matcher:
        token_triggers = [trigger.token for trigger in grammar_triggers if trigger.kind == "token"]
        patterns = [trigger.pattern for trigger in grammar_triggers if trigger.kind not in ("token", SPELLED)]
        tolerant = any(trigger.kind == MARKER for trigger in grammar_triggers)
        triggers = Triggers(patterns, token_triggers, False, spelled, tolerant)
        return LazyMatcher(matcher, tokens, triggers, "grammar_triggers")

    begin = lazy if params.grammar_lazy else matcher
    if not params.grammar_after:
        return begin()
    end = Triggers([re.escape(params.grammar_after)], (), True, spelled)
    return LazyMatcher(begin, tokens, end, "grammar_after")


def compiled_structure(name: str, text: str | Sequence[str], tokens: TokenBytes) -> Structure:
    """Compile a structure: name is a field of `STRUCTURES`, or lark; text is what it says."""
    if _size(_Key(tokens, name, text if isinstance(text, str) else tuple(text))) > MAX_TEXT:
        raise UsageError(f"{name}: at most {MAX_TEXT} characters are wanted")
    if name == "regex" and len(text) > MOST_PATTERN:
        raise UsageError(f"regex: at most {MOST_PATTERN} characters are wanted, got {len(text)}")
    if name == "choices":
        return _by_llguidance(name, _choices_grammar(text), tokens)
    assert isinstance(text, str)
    if name == "begins_with":
        return TextBegin(text.encode("utf-8", "surrogatepass"), tokens)
    if name == "grammar" and text.startswith(LARK):
        return _by_llguidance(name, library().LLMatcher.grammar_from_lark(text.partition("\n")[2]), tokens)
    if name == "grammar":
        return GbnfGrammar(parse_gbnf(text, "root", tokens.token_of), tokens)
    if name == "json_schema":
        return generated_structure(schema_of_text(text), tokens)
    matcher = library().LLMatcher
    make = matcher.grammar_from_regex if name == "regex" else matcher.grammar_from_lark
    return _by_llguidance(name, make(text), tokens)


def _by_llguidance(name: str, grammar: str, tokens: TokenBytes) -> Structure:
    structure = LlguidanceStructure(grammar, tokens)
    if structure.error:
        raise UsageError(f"{name}: {structure.error.strip()}")
    return structure


def _choices_grammar(texts: Sequence[str]) -> str:
    """Lark of one of some texts. llguidance's literals cannot be empty, so that one is an option."""
    written = [json.dumps(text, ensure_ascii=False) for text in texts if text]
    if not written:
        raise UsageError("choices: wanted at least one text that is not empty")
    body = " | ".join(written)
    grammar: str = library().LLMatcher.grammar_from_lark(f"start: ({body}){'?' if '' in texts else ''}")
    return grammar


class Structured:
    """What one session's generation must follow; nothing, where it is made of nothing."""

    def __init__(
        self, params: SamplingParams | None = None, tokenizer: SamplerVocabulary | None = None
    ) -> None:
        self._params = params
        self._matcher = None if params is None else matcher_of(params, tokenizer)

    def matcher(self, params: SamplingParams, generated: Sequence[int]) -> Matcher | None:
        """The matcher behind what was generated; UsageError for other params than those of the generation."""
        if not params.structured:
            return None
        if self._matcher is None or params != self._params:
            raise UsageError(
                "sample: a grammar, schema, regex, list of choices or begin counts within `generate`"
            )
        self._matcher.catch_up(generated, len(generated))
        return self._matcher

    def forced(self, generated: Sequence[int], room: int) -> list[int]:
        """The tokens that must come behind what was generated, at most `room`."""
        params = self._params
        return [] if params is None else forced_tokens(self._matcher, params, generated, len(generated), room)
