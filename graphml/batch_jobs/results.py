"""The files of a job's results: whole lines, appended; what is in them already is not asked again.

A result's id is a hash of its request and the model, so a file of another job is known. Knows files and
lines; nothing of models.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from graphml.batch_jobs.requests import BatchRequest
from graphml.errors import UsageError
from graphml.system.closing import Closing
from graphml.system.file_lock import lock_alone
from graphml.system.replaced_file import replacing

ERRORS = ".errors.jsonl"


def result_id(request: BatchRequest, model: str) -> str:
    """The id of a request's result with a model."""
    asked = [request.number, request.custom_id, request.url, request.body, request.problem, model]
    text = json.dumps(asked, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return f"batch_req_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def errors_file(output: Path) -> Path:
    """The file of the lines that failed."""
    name = output.name.removesuffix(output.suffix) if output.suffix == ".jsonl" else output.name
    return output.with_name(name + ERRORS)


class ResultFile(Closing):
    """A file of results, open for more. ids: of the results that it has."""

    def __init__(self, path: Path) -> None:
        """UsageError for a file that another job writes, or that has other lines."""
        self.path, self.ids = path, dict[str, int]()
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        try:
            lock_alone(self._file, path)
            self._size = self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> int:
        """Take the ids; a last line that was not finished is cut off. Returns the bytes of whole lines."""
        self._file.seek(0)
        end, number = 0, 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as lines:
            for raw in lines:
                if not raw.endswith(b"\n"):
                    break
                number += 1
                try:
                    name = json.loads(raw)["id"]
                except (ValueError, KeyError, TypeError, RecursionError):
                    name = None
                if not isinstance(name, str) or not name.startswith("batch_req_"):
                    raise UsageError(
                        f"{self.path}: line {number}: wanted results of `graphml batch`; choose another file"
                    )
                self.ids.setdefault(name, number)
                end += len(raw)
        self._file.truncate(end)
        return end

    def add(self, result: Mapping[str, Any]) -> None:
        """Append a line, whole or not at all; UsageError where it cannot be written."""
        line = (
            json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        )
        try:
            left = memoryview(line)
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise UsageError(
                f"{self.path}: {error.strerror or error}; {len(self.ids)} results are kept, and the same "
                "command goes on from them"
            ) from None
        self._size += len(line)
        self.ids[result["id"]] = len(self.ids) + 1

    def empty(self) -> None:
        """Forget all lines."""
        self._file.truncate(0)
        self._size = 0
        self.ids.clear()

    def sort(self, order: Mapping[str, int]) -> None:
        """Put the lines in the order of their requests; the file is replaced at once or stays as it is."""
        places: list[tuple[int, int, int]] = []
        with self.path.open("rb") as file:
            at = 0
            for raw in file:
                places.append((order[json.loads(raw)["id"]], at, len(raw)))
                at += len(raw)
            if places == sorted(places):
                return
            with replacing(self.path) as path, path.open("wb") as sorted_file:
                for _, start, length in sorted(places):
                    file.seek(start)
                    sorted_file.write(file.read(length))

    def leave_nothing(self, error: type[BaseException] | None, *rest: object) -> None:
        """At the end of a `with` by an error: an empty file, which says nothing, is removed."""
        if error is not None and not self._size:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def close(self) -> None:
        """Write what the system holds to the disk."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()
