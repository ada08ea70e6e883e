"""The program of the process that checks the arguments of a call against the schema of its tool.

Expressions in a schema of somebody else's may take for ever, and Python's hold all threads meanwhile. Knows
JSON Schema and what a request says; imports of graphml the loop of such processes alone (`kept_program`).

A request is the schema and the arguments, in JSON, as `marshal` writes the pair. An answer is TEXT: empty, or
what is wrong; or FAILURE: why they could not be checked.
"""

from __future__ import annotations

import json
import marshal

from jsonschema.exceptions import ValidationError
from jsonschema.validators import validator_for
from referencing import Registry

from graphml.system.kept_program import FAILURE, TEXT, answer_requests


def _answer(request: bytes) -> tuple[int, bytes]:
    schema, arguments = map(json.loads, marshal.loads(request))
    try:
        validator_for(schema)(schema, registry=Registry()).validate(arguments)  # which fetches no reference
    except ValidationError as error:
        return TEXT, f"arguments{error.json_path.removeprefix('$')}: {error.message}".encode(
            "utf-8", "replace"
        )
    except MemoryError:
        raise
    except Exception as error:
        return FAILURE, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
    return TEXT, b""


if __name__ == "__main__":
    _answer(marshal.dumps(('{"type": "object", "properties": {"a": {"pattern": "a"}}}', '{"a": "a"}')))
    answer_requests(_answer)
