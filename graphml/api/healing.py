"""Token healing: the last token of a prompt is taken back, and the text has to begin with what it spelled.

Knows prompts, tokens' bytes and parameters; the mask is `graphml.sampling.structured.params_structure`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.text.tokenizer import Tokenizer

MOST = 4
"""Most tokens that are taken back: of a character of UTF-8 that is several tokens."""


@dataclass(frozen=True)
class HealedPrompt:
    """ids: without the tokens that were taken back; params: by which text begins with what they spelled.

    text: that, with which what is generated begins; empty where nothing was taken back.
    """

    ids: list[int]
    params: SamplingParams
    text: str


def healed(tokenizer: Tokenizer, ids: list[int], params: SamplingParams) -> HealedPrompt:
    """Take the last token of a prompt back, several where one is a part of a character.

    Control tokens stay, and so does the first id: something has to be continued. UsageError where the params
    have a structure already.
    """
    if params.structured:
        raise UsageError("heal: wanted params without a grammar, schema, regex, choices or begins_with")
    kept, spelled = list(ids), b""
    for _ in range(MOST):
        if len(kept) < 2 or tokenizer.is_special(kept[-1]):
            break
        spelled = tokenizer.piece_bytes(kept.pop()) + spelled
        try:
            text = spelled.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text:
            return HealedPrompt(kept, replace(params, begins_with=text), text)
    return HealedPrompt(list(ids), params, "")
