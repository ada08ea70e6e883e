"""Log-probabilities as clients want them: llama-server's entries, OpenAI's for chats, and for completions.

A probability of 0 is -9999 there, as JSON has no infinite numbers. Knows values and these forms.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from graphml.sampling.candidates.logprobs import TokenLogprobs

LEAST = -9999.0


def entries(logprobs: Iterable[TokenLogprobs | None], after_sampling: bool = False) -> list[dict[str, Any]]:
    """One entry for each token, in llama-server's form, of which OpenAI's for chats is a part."""
    value, top = ("prob", "top_probs") if after_sampling else ("logprob", "top_logprobs")

    def form_of(id: int, raw: bytes, logprob: float) -> dict[str, Any]:
        number = math.exp(logprob) if after_sampling else max(LEAST, logprob)
        return {"id": id, "token": raw.decode("utf-8", "ignore"), "bytes": list(raw), value: number}

    return [
        {
            **form_of(entry.id, entry.bytes, entry.logprob),
            "entropy": entry.entropy,
            **({"drafted": True} if entry.drafted else {}),
            top: [form_of(*best) for best in entry.top if not after_sampling or math.exp(best.logprob) > 0],
        }
        for entry in logprobs
        if entry is not None
    ]


def in_lists(logprobs: Sequence[TokenLogprobs | None], ids: Sequence[bytes], begin: int) -> dict[str, Any]:
    """OpenAI's form for completions: lists of all tokens. ids: each token's bytes; begin: the first's place.

    text_offset counts characters of the answer's text; parts of one have the same place.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets: list[int] = []
    for raw in ids:
        offsets.append(begin)
        begin += len(decoder.decode(raw))
    return {
        "tokens": [raw.decode("utf-8", "replace") for raw in ids],
        "token_logprobs": [None if entry is None else max(LEAST, entry.logprob) for entry in logprobs],
        "top_logprobs": [None if entry is None else _best(entry) for entry in logprobs],
        "text_offset": offsets,
        "content": entries(logprobs),
    }


def _best(entry: TokenLogprobs) -> dict[str, float]:
    return {best.bytes.decode("utf-8", "replace"): max(LEAST, best.logprob) for best in entry.top}
