"""Structured output: a grammar, schema or expression that a text must follow, as masks over the next token.

`grammar` reads GBNF. Each compiled structure gives matchers, one per text; see `matcher`. Knows vocabularies
as bytes; nothing of models, sessions or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphml.sampling.structured.gbnf_grammar import GbnfGrammar
from graphml.sampling.structured.gbnf_parser import parse_gbnf
from graphml.sampling.structured.lazy_matcher import LazyMatcher, Triggers
from graphml.sampling.structured.matcher import Matcher, Structure, StructureProgress
from graphml.sampling.structured.opened_tokens import AnyTokens, opened_tokens
from graphml.sampling.structured.schema_structure import schema_structure
from graphml.sampling.structured.token_bytes import TokenBytes

__all__ = ["Matcher", "Structure", "StructureProgress", "TokenBytes", "grammar", "json_schema"]


def grammar(
    text: str,
    root: str = "root",
    vocab: AnyTokens | None = None,
    *,
    lazy: bool = False,
    trigger_patterns: Sequence[str] = (),
    trigger_tokens: Sequence[int] = (),
) -> Matcher:
    """A matcher of a GBNF grammar, at the begin of a text.

    vocab: the path of a model, or its tokenizer; None: the 256 bytes as tokens. lazy: everything is allowed
    until a token of `trigger_tokens` or a text that a regular expression of `trigger_patterns` finds; from
    there on, the trigger included, the grammar is matched. UsageError with line and column for a grammar that
    is wrong or over a limit, and for wrong patterns.
    """
    tokens = opened_tokens(vocab)
    compiled = GbnfGrammar(parse_gbnf(text, root, tokens.token_of), tokens)
    if lazy:
        triggers = Triggers(trigger_patterns, trigger_tokens)
        return LazyMatcher(lambda: Matcher(compiled.begin(), tokens), tokens, triggers, "grammar")
    return Matcher(compiled.begin(), tokens)


def json_schema(schema: Any, vocab: AnyTokens | None = None) -> Matcher:
    """A matcher of the JSON texts that are valid under a schema, at the begin of a text.

    schema: a dict or bool, as json.loads gives it. An object's properties come in the schema's order, each
    once, as texts are generated; space between the parts is free. Characters that need no escape have none
    (`json.dumps(..., ensure_ascii=False)`), integers no fraction.
    UsageError, with the place or the reason, for what is no schema or is not supported.
    """
    tokens = opened_tokens(vocab)
    compiled = schema_structure(schema, tokens)
    return Matcher(compiled.begin(), tokens, "json_schema")
