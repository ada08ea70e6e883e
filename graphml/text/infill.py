"""Infill prompts (fill in the middle): the text before and behind a gap, and other files, as token ids.

The layout is llama.cpp's (`/infill` of llama-server), and Qwen2.5-Coder's for several files (Hui et al. 2024,
arXiv:2409.12186). Knows token ids and texts; nothing of models or generation.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.errors import UsageError
from graphml.options.argument_checks import items_of, text_of
from graphml.text.tokenizer import Tokenizer

ORDERS = ("psm", "spm")
"""Prefix, suffix, middle; or suffix, prefix, middle."""
NEEDED = ("prefix", "suffix", "middle")
SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before another file where the vocabulary has no token for that."""
PROJECT, CURRENT = "myproject\n", "filename\n"
"""What llama.cpp calls the project and the file with the gap."""


def infill_ids(
    tokenizer: Tokenizer,
    prefix: str,
    suffix: str,
    extra: Sequence[tuple[str, str]] = (),
    order: str = "psm",
    room: int | None = None,
) -> list[int]:
    """The ids of a prompt that asks for the text between prefix and suffix.

    extra: other files, each its name and its text; the last are the nearest. order: one of `ORDERS`. room:
    most ids; None: no limit. Where they are more, the prefix keeps its end and the suffix its beginning, 3 to
    1 as far as both want them, and the files get what is left, the last of them first. UsageError for other
    arguments, a room below 8, and a vocabulary without the tokens.
    """
    fill = _tokens(tokenizer)
    if order not in ORDERS:
        raise UsageError(f"order: wanted one of {', '.join(ORDERS)}; got {order!r}")
    if room is not None and room < 8:
        raise UsageError(f"room: wanted at least 8 ids for an infill prompt; got {room}")
    before = tokenizer.encode(text_of("prefix", prefix), add_special=False)
    behind = tokenizer.encode(text_of("suffix", suffix), add_special=False)
    others = _others(tokenizer, fill, _files(extra))
    begin = _begin(tokenizer)
    if room is not None:
        left = room - len(begin) - len(NEEDED)
        n_behind = min(len(behind), max(left // 4, left - len(before)))
        n_before = min(len(before), left - n_behind)
        before, behind = before[len(before) - n_before :], behind[:n_behind]
        others = others[max(0, len(others) - (left - n_before - n_behind)) :]
    first, second = [fill["prefix"], *before], [fill["suffix"], *behind]
    parts = first + second if order == "psm" else second + first
    return [*begin, *others, *parts, fill["middle"]]


def _tokens(tokenizer: Tokenizer) -> dict[str, int]:
    missing = [role for role in NEEDED if role not in tokenizer.fill_tokens]
    if missing:
        raise UsageError(
            f"fill: the vocabulary has no fill-in-the-middle token for {', '.join(missing)}; wanted a model "
            "that was trained to fill gaps, as many for code are (Qwen2.5-Coder, StarCoder2, CodeLlama)"
        )
    return tokenizer.fill_tokens


def _files(extra: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    wanted = "(name, text) of each file"
    pairs = []
    for pair in items_of("extra", extra, wanted):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"extra: wanted {wanted}; got {pair!r:.80}")
        pairs.append((text_of("extra", pair[0]), text_of("extra", pair[1])))
    return pairs


def _others(tokenizer: Tokenizer, fill: dict[str, int], files: list[tuple[str, str]]) -> list[int]:
    """Other files as the model was trained on them, as far as its vocabulary has tokens for that."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    tokens: list[int] = []
    separator = fill.get("separator")
    if files and "repository" in fill:
        tokens += [fill["repository"], *ids(PROJECT)]
    for name, text in files:
        tokens += ids(SNIPPET) if separator is None else [separator, *ids(f"{name}\n")]
        tokens += ids(text)
    if files and separator is not None:
        tokens += [separator, *ids(CURRENT)]
    return tokens


def _begin(tokenizer: Tokenizer) -> list[int]:
    """The token that the vocabulary wants before a text."""
    bos = tokenizer.bos
    return [] if bos is None or tokenizer.encode("", add_special=True)[:1] != [bos] else [bos]
