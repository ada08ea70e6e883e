"""The order of filters as a text: names between semicolons, or one letter each, as llama.cpp reads them.

A filter's name is that of its file; llama.cpp's other names for it are here. Knows no filter.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from graphml.errors import UsageError, did_you_mean

ALIASES: Final = {
    "nucleus": "top_p", "typ_p": "typical", "typical_p": "typical", "typ": "typical", "temp": "temperature",
    "function": "own_function", "epsilon_cutoff": "epsilon", "eta_cutoff": "eta",
}  # fmt: skip
MOST_NAMES: Final = 64
LETTERS: Final = {
    "d": "dry", "k": "top_k", "y": "typical", "p": "top_p", "s": "top_n_sigma", "m": "min_p",
    "t": "temperature", "x": "xtc", "i": "infill", "e": "penalties",
}  # fmt: skip


@cache
def filter_names() -> frozenset[str]:
    """The filters by their files."""
    files = (Path(__file__).parents[1] / "filters").glob("*.py")
    return frozenset(file.stem for file in files) - {"__init__"}


def named_in(text: str) -> tuple[str, ...]:
    """The filters that a text names, in its order; UsageError with the first that is unknown.

    As in llama.cpp, `-` is `_`, and a text without a semicolon that is no name is read letter by letter.
    """
    names = [name.strip().lower().replace("-", "_") for name in text.split(";") if name.strip()]
    known = filter_names() | ALIASES.keys()
    if len(names) == 1 and names[0] not in known and set(names[0]) <= LETTERS.keys():
        names = [LETTERS[letter] for letter in names[0][: MOST_NAMES + 1]]
    if len(names) > MOST_NAMES:
        raise UsageError(f"samplers: wanted at most {MOST_NAMES} filters, got more")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"samplers: wanted names of {', '.join(sorted(known))} with ';' between, or letters of "
            f"{''.join(sorted(LETTERS))}; got {unknown[0]!r}.{did_you_mean(unknown[0], known)}"
        )
    return tuple(ALIASES.get(name, name) for name in names)


def checked_order(name: str, value: object) -> str:
    """The text, if all its names are known; else UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{name}: wanted a text such as 'top_k;top_p;temperature', got {value!r}")
    named_in(value)
    return value
