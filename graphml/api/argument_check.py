"""Arguments of a call are checked against the schema of its tool, in a process that can be ended.

Knows the limits of a check and the form of a request (`argument_program`); nothing of servers.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphml.errors import UsageError
from graphml.system.kept_processes import EndedError, KeptProcesses
from graphml.system.kept_program import FAILURE

MOST_PROCESSES = 2
SECONDS, SECONDS_PER_CHAR = 1.0, 1e-5
MEMORY = 512 << 20
LONGEST_ANSWER = 16 << 20
PROCESSES = KeptProcesses(Path(__file__).with_name("argument_program.py"), MOST_PROCESSES)


def wrong_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What of a call's arguments does not follow a schema, with its place; empty where all do.

    UsageError where that cannot be found out within the limits of a check.
    """
    texts = json.dumps(schema), json.dumps(arguments)
    seconds = SECONDS + SECONDS_PER_CHAR * sum(map(len, texts))
    try:
        with PROCESSES.one_of_them() as process:
            kind, text = process.answer(marshal.dumps(texts), seconds, MEMORY, LONGEST_ANSWER)
    except EndedError as error:
        reason = str(error) or f"its process ended: {error.why}, exit code {error.code}"
        raise UsageError(
            f"arguments: wanted a schema by which they are checked within {seconds:.2f} s ({reason})"
        ) from None
    if kind == FAILURE:
        raise UsageError(f"arguments: they cannot be checked: {text}")
    return text
