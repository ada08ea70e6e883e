"""The program of the process in which structures of others are compiled before they are compiled here.

It compiles for the vocabularies that it has received, and says how much memory a structure keeps; a schema
that becomes a part of a grammar it sends back. Knows structures and what a request says.

A request is what `marshal` makes of a tuple, an answer TEXT or FAILURE, the error's text:
("vocabulary", number, pieces, end tokens, special tokens): TEXT is empty;
("structure", number, name, text): TEXT is the bytes that it keeps, UNKNOWN for a number without a vocabulary;
("part", text, closed, partly): TEXT is JSON, of what `forceable_part` returns, or `schema_of_part` and [].
"""

from __future__ import annotations

import gc
import json
import marshal
import mmap
import os
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final

from graphml.errors import UsageError
from graphml.sampling.structured.params_structure import walked_structure
from graphml.sampling.structured.schema_structure import forceable_part, schema_of_part
from graphml.sampling.structured.token_bytes import TokenBytes
from graphml.sampling.structured.tried_structures import UNKNOWN
from graphml.system.kept_program import FAILURE, TEXT, answer_requests
from graphml.system.pages import give_back_memory

KEPT_VOCABULARIES: Final = 2
_VOCABULARIES: OrderedDict[int, TokenBytes] = OrderedDict()


class _Sizes:
    """How large this process is, in bytes; 0 where the system is not Linux."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY)  # no file can be opened later

    def addresses(self) -> int:
        """Of its addresses."""
        return self._column(0)

    def resident(self) -> int:
        """Of what is in RAM."""
        return self._column(1)

    def _column(self, index: int) -> int:
        return 0 if self._file is None else int(os.pread(self._file, 200, 0).split()[index]) * mmap.PAGESIZE


SIZES: Final = _Sizes()


def _kept_bytes(name: str, text: str | tuple[str, ...], tokens: TokenBytes) -> int:
    before = SIZES.resident()
    structure = walked_structure(name, text, tokens)
    grown = SIZES.resident() - before
    del structure
    give_back_memory()  # else the next one grows into what is free
    return max(0, grown)


def _text(kind: str, *arguments: Any) -> str | None:
    if kind == "vocabulary":
        number, pieces, ends, special = arguments
        _VOCABULARIES[number] = TokenBytes(pieces, ends, special)
        while len(_VOCABULARIES) > KEPT_VOCABULARIES:
            _VOCABULARIES.popitem(last=False)
        walked_structure("regex", "a", _VOCABULARIES[number])  # makes what all of its structures share
        gc.freeze()  # what stays is not looked at with each request
        return ""
    if kind == "part":
        text, closed, partly = arguments
        return json.dumps(forceable_part(text, closed) if partly else (schema_of_part(text, closed), ()))
    number, name, text = arguments
    if number not in _VOCABULARIES:
        return None
    _VOCABULARIES.move_to_end(number)
    return str(_kept_bytes(name, text, _VOCABULARIES[number]))


def _answer(request: bytes) -> tuple[int, bytes]:
    try:
        text = _text(*marshal.loads(request))
    except UsageError as error:
        return FAILURE, str(error).encode("utf-8", "surrogatepass")
    return (UNKNOWN, b"") if text is None else (TEXT, text.encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    walked_structure("json_schema", "{}", TokenBytes((b"a", b"<end>"), frozenset([1]), frozenset([1])))
    gc.freeze()
    answer_requests(_answer, SIZES.addresses)
