"""Structures that others wrote are compiled in a process first, within limits of time and memory.

llguidance can take minutes and gigabytes for a schema of 2 KB, and overflow the stack: that ends the process,
and is the error of this structure alone. Knows the requests of `trial_program`; nothing of settings.
"""

from __future__ import annotations

import json
import marshal
from itertools import count
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from graphml.errors import UsageError
from graphml.sampling.structured.compile_turns import AT_A_TIME
from graphml.sampling.structured.token_bytes import TokenBytes
from graphml.system.kept_processes import EndedError, KeptProcess, KeptProcesses
from graphml.system.kept_program import FAILURE

SECONDS, SECONDS_PER_CHAR = 1.0, 1e-5
"""Of the processor's time."""
MEMORY, MEMORY_PER_CHAR = 128 << 20, 512
LONGEST_ANSWER: Final = 16 << 20
UNKNOWN: Final = 2
"""The kind of an answer: the process has not got this vocabulary yet."""
_FOR_VOCABULARIES: Final = 30.0, 4 << 30  # theirs are ours
PROCESSES = KeptProcesses(Path(__file__).with_name("trial_program.py"), AT_A_TIME)
_NUMBERS, _OF_VOCABULARY = count(), WeakKeyDictionary[TokenBytes, int]()


def structure_bytes(name: str, text: str | tuple[str, ...], tokens: TokenBytes) -> int:
    """The memory that a structure keeps, which was compiled within its limits; 0 where it is not known.

    UsageError that names the structure for what is wrong, and for what goes over its limits.
    """
    number = _OF_VOCABULARY.setdefault(tokens, next(_NUMBERS))

    def answer(process: KeptProcess, seconds: float, memory: int) -> tuple[int, str]:
        request = marshal.dumps(("structure", number, name, text))
        kind, answered = process.answer(request, seconds, memory, LONGEST_ANSWER)
        if kind == UNKNOWN:
            vocabulary = ("vocabulary", number, tuple(tokens.pieces), tokens.end_tokens, tokens.special)
            process.answer(marshal.dumps(vocabulary), *_FOR_VOCABULARIES, LONGEST_ANSWER)
            kind, answered = process.answer(request, seconds, memory, LONGEST_ANSWER)
        return kind, answered

    return int(_within_limits(name, sum(map(len, text)), answer))


def tried_part(text: str, closed: bool, partly: bool) -> tuple[Any, tuple[str, ...]]:
    """What `forceable_part` or, without partly, `schema_of_part` returns; errors of `structure_bytes`."""
    request = marshal.dumps(("part", text, closed, partly))
    answer = _within_limits(
        "json_schema", len(text), lambda process, *limits: process.answer(request, *limits, LONGEST_ANSWER)
    )
    part, places = json.loads(answer)
    return part, tuple(places)


def _within_limits(name: str, size: int, answer: Any) -> str:
    seconds, memory = SECONDS + SECONDS_PER_CHAR * size, MEMORY + MEMORY_PER_CHAR * size
    try:
        with PROCESSES.one_of_them() as process:
            kind, text = answer(process, seconds, memory)
    except EndedError as error:
        if error.why == "start":
            raise UsageError(f"{name}: no process that compiles it can be started: {error}") from None
        raise UsageError(
            f"{name}: wanted one that compiles within {seconds:.2f} s and {memory >> 20} MiB, and is not "
            f"nested too deeply; its process ended ({error.why}, exit code {error.code})"
        ) from None
    if kind == FAILURE:
        raise UsageError(text)
    assert isinstance(text, str)
    return text
