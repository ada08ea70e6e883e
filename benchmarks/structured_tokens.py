"""The tokens of structured text beside those that the tokenizer has for it, on a model and on vocabularies.

    python benchmarks/structured_tokens.py [--model smollm2] [--schemas 200] [VOCABULARY]...

The model answers each of some made schemas. Of its tokens that are literals through and through (keys,
words of an enum, true and false, brackets and commas): how many stand where the tokenizer has a token, and
how many tokens an answer has beside `encode(answer)`. Then the same answers are written in the vocabulary
of each GGUF file under the same schemas, by a writer that takes the tokenizer's next token 99 times of 100,
and else any that fits the text.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import graphml
from graphml.sampling import SamplingParams
from graphml.sampling.structured.opened_tokens import tokens_of
from graphml.sampling.structured.packed_masks import unpacked
from graphml.sampling.structured.params_structure import matcher_of
from graphml.sampling.structured.token_bytes import TokenBytes

_NAMES = """
city country continent first_name last_name email_address is_active created_at status priority category
description price quantity currency temperature humidity title author publisher year language pages rating
comments tags url username shippingAddress orderNumber paymentMethod deliveryDate customerId Straße prénom
città
"""
_CHOICES = """
Europe; Asia; North America; in_progress; done; cancelled; very high; high; medium; low; credit_card;
bank_transfer; cash on delivery; red; green; dark blue; Monday; Tuesday; EUR; München; Zürich; São Paulo;
東京; Москва; yes; no; not applicable; unknown; other
"""
NAMES, CHOICES = _NAMES.split(), " ".join(_CHOICES.split()).split("; ")
_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|true|false|null')


class Counted(NamedTuple):
    """Of answers: tokens that are literals, those that are the tokenizer's own; all, and the tokenizer's."""

    literal: int
    own: int
    n: int
    n_own: int

    def __str__(self) -> str:
        share, more = self.own / max(1, self.literal), self.n / max(1, self.n_own) - 1
        return f"{share:.2%} of {self.literal} | {more:+.2%} ({self.n}, {self.n_own})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("vocabularies", nargs="*", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    given = parser.parse_args()
    schemas = list(made_schemas(given.schemas))
    print("| | literal tokens that are the tokenizer's own | tokens beside `encode` |\n|---|---:|---:|")
    with graphml.load(given.model, threads=2) as model:
        vocabulary = tokens_of(model.tokenizer)
        ids = answers(model, schemas, given.temperature)
        texts = [b"".join(vocabulary.pieces[one] for one in answer) for answer in ids]
        whole = [i for i, text in enumerate(texts) if _is_json(text)]
        counted = added(counts(vocabulary, ids[i], schemas[i]) for i in whole)
        print(f"| {given.model}, {len(whole)} answers that ended | {counted} |", flush=True)
    for path in given.vocabularies:
        tokenizer, numbers = graphml.load_tokenizer(path), random.Random(0)
        vocabulary = tokens_of(tokenizer)
        written = [(i, written_again(vocabulary, tokenizer, schemas[i], texts[i], numbers)) for i in whole]
        counted = added(counts(vocabulary, answer, schemas[i]) for i, answer in written)
        print(f"| {path.name} | {counted} |", flush=True)


def made_schemas(n: int) -> Iterator[dict[str, Any]]:
    """Objects of texts, numbers, words of an enum, lists and objects; some properties need not come."""
    numbers = random.Random(0)
    for _ in range(n):
        yield _object(numbers, 0)


def _object(numbers: random.Random, depth: int) -> dict[str, Any]:
    names = numbers.sample(NAMES, numbers.randint(2, 6))
    properties = {name: _value(numbers, depth) for name in names}
    required = [name for name in names if numbers.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(numbers: random.Random, depth: int) -> dict[str, Any]:
    kind = numbers.random()
    if kind < 0.35:
        return {"enum": numbers.sample(CHOICES, numbers.randint(1, 6))}
    if kind < 0.55:
        return {"type": "string", "maxLength": 20}
    if kind < 0.7:
        return {"type": "integer", "minimum": 0, "maximum": 5000}
    if kind < 0.85 or depth > 1:
        return {"type": "boolean"}
    if kind < 0.93:
        return {"type": "array", "items": _value(numbers, depth + 1), "minItems": 1, "maxItems": 3}
    return _object(numbers, depth + 1)


def answers(model: graphml.Model, schemas: Sequence[dict[str, Any]], temperature: float) -> list[list[int]]:
    """The ids of an answer to each schema, end tokens left out."""
    ends = set(model.tokenizer.end_tokens)
    with model.engine(max_sequences=16, n_ctx=1024) as engine:
        handles = []
        for i, schema in enumerate(schemas):
            asked = f"An example of a record with {', '.join(schema['properties'])}, as JSON:\n"
            params = SamplingParams(temperature=temperature, top_k=40, json_schema=schema)
            handles.append(engine.submit(asked, params, max_tokens=300, seed=i))
        return [[one for one in handle.result().tokens if one not in ends] for handle in handles]


def written_again(
    vocabulary: TokenBytes, tokenizer: Any, schema: dict[str, Any], text: bytes, numbers: random.Random
) -> list[int]:
    """A text in tokens of a vocabulary, as a writer would who mostly writes what the tokenizer has."""
    start = matcher_of(SamplingParams(json_schema=schema), tokenizer)
    assert start is not None
    ids: list[int] = []
    done = 0
    while done < len(text):
        bits = start.bits()
        rest = text[done:]
        fitting = [
            token
            for token in np.flatnonzero(unpacked(bits, vocabulary.n)).tolist()
            if vocabulary.pieces[token] and rest.startswith(vocabulary.pieces[token])
        ]
        token = numbers.choice(fitting) if fitting else -1
        before = tuple(vocabulary.pieces[one] for one in ids[-1:])
        own = vocabulary.ids_behind(before, rest) or vocabulary.ids_behind((), rest)
        # Behind a token of this writer's own a run of spaces may not go on: the tokenizer's is accepted, too.
        if own and (not fitting or (own[0] in fitting and numbers.random() < 0.99)):
            token = own[0]
        start.accept(token)
        ids.append(token)
        done += len(vocabulary.pieces[token])
    return ids


def counts(vocabulary: TokenBytes, ids: Sequence[int], schema: dict[str, Any]) -> Counted:
    """Of one answer."""
    pieces = [vocabulary.pieces[one] for one in ids]
    text = b"".join(pieces)
    own_ids = vocabulary.ids_behind((), text)
    own = set(_spans([vocabulary.pieces[one] for one in own_ids]))
    literal = _literal_bytes(text.decode(), schema)
    spans = [span for span in _spans(pieces) if all(literal[span[0] : span[1]])]
    return Counted(len(spans), len(own.intersection(spans)), len(ids), len(own_ids))


def added(counted: Iterator[Counted]) -> Counted:
    """All together."""
    return Counted(*map(sum, zip(*counted, strict=True)))


def _spans(pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(map(len, pieces)))
    return zip([0, *ends], ends, strict=False)


def _literal_bytes(text: str, schema: dict[str, Any]) -> list[bool]:
    """Of each byte of a JSON text whether it is of a key, a listed word, or between values."""
    words = set(_listed(schema))
    found = [False] * len(text.encode())
    for part in _PARTS.finditer(text):
        is_text = part[0].startswith('"')
        if is_text and json.loads(part[0]) not in words and not re.match(r"\s*:", text[part.end() :]):
            continue
        begin = len(text[: part.start()].encode())
        for i in range(begin, begin + len(part[0].encode())):
            found[i] = True
    return found


def _listed(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("enum", ())
        for one in schema.values():
            yield from _listed(one)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
