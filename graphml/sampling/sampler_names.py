"""The order of filters as a text: names between semicolons, or one letter each, as llama.cpp reads them.

The names are those that the filters state. Knows how the text is split; nothing of what filters do.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.errors import UsageError
from graphml.similar_names import did_you_mean


def named_in(text: str, known: Iterable[tuple[tuple[str, ...], str]]) -> tuple[str, ...]:
    """The first names of the filters that the text names, in its order; UsageError naming an unknown one.

    known: of each filter its names and its letter. As in llama.cpp, `-` is `_`, and a text without a
    semicolon that is no name is read letter by letter.
    """
    known = [(names, letter) for names, letter in known if names]
    by_name = {_plain(one): names[0] for names, _ in known for one in names}
    by_letter = {letter: names[0] for names, letter in known if letter}
    given = [_plain(one) for one in text.split(";") if one.strip()]
    if len(given) == 1 and given[0] not in by_name and set(given[0]) <= by_letter.keys():
        return tuple(by_letter[letter] for letter in given[0])
    unknown = [one for one in given if one not in by_name]
    if unknown:
        raise UsageError(
            f"samplers: wanted names of {', '.join(sorted({*by_name.values()}))} with ';' between, or "
            f"letters of {''.join(sorted(by_letter))}; got {unknown[0]!r}.{did_you_mean(unknown[0], by_name)}"
        )
    return tuple(by_name[one] for one in given)


def checked_order(name: str, value: object) -> str:
    """The text, if all its names are known; else UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{name}: wanted a text such as 'top_k;top_p;temperature', got {value!r}")
    if value:
        # the filters' files, which have the names, import the params
        from graphml.sampling.filter_order import CHAIN

        named_in(value, [(one.names, one.letter) for one in CHAIN])
    return value


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")
