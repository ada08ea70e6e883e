"""A hash of the code that a model's keys and values were computed by: its author changes it and asks again.

The file of the architecture, and the ops of one's own in its graph. Knows executors; nothing of what is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from graphml.loading.discovery import FILE_MODULE
from graphml.loading.own_ops import own_ops_in
from graphml.runtime.programs.executor import Executor


def code_of(executor: Executor) -> str:
    """Of the architecture's file, and of its ops of one's own."""
    return _hashed([_file_hash(executor), *_definitions(executor)])


def own_code_of(executor: Executor) -> str:
    """The same of a model with code of its user's; "" of one that graphml alone computes."""
    definitions = _definitions(executor)
    is_own = executor.architecture.build.__module__.startswith(FILE_MODULE)
    return _hashed([_file_hash(executor) if is_own else "", *definitions]) if is_own or definitions else ""


def _definitions(executor: Executor) -> list[str]:
    return [f"{op.name} {op.definition}" for op in own_ops_in(executor.build(1, 1))]


def _file_hash(executor: Executor) -> str:
    code = getattr(executor.architecture.build, "__code__", None)
    with contextlib.suppress(OSError):
        return "" if code is None else hashlib.sha256(Path(code.co_filename).read_bytes()).hexdigest()
    return ""


def _hashed(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
