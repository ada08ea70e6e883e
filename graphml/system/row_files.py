"""Rows of a file: lines of text, of JSON or of CSV, or a table that pyarrow reads; in order, a few at a time.

A line that is none of its kind is a row with the reason. Knows files; nothing of what the rows are for.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from graphml.errors import UsageError

TABLES: Final = (".parquet", ".arrow")
JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
LONGEST: Final = 64 << 20  # bytes of a line
TOGETHER: Final = 256
"""Rows of a table that are in memory together."""


@dataclass(frozen=True)
class WrongLine:
    """A line that cannot be read, and why."""

    problem: str


def read_rows(path: Path, empty: bool = False) -> Iterator[tuple[int, Any]]:
    """Number from 1 and value of each line or row: a text, what JSON says, or a mapping of a table's columns.

    empty: lines of text without any are rows, too. UsageError for a file that cannot be read.
    """
    ending = path.suffix.lower()
    if path.is_dir() or ending in TABLES:
        yield from enumerate(_table_rows(path), 1)
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: wanted a plain file: a job reads it again when it goes on")
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
                if len(raw) > LONGEST:
                    raise UsageError(f"{path}: line {number}: wanted at most {LONGEST >> 20} MiB")
                is_text = ending not in JSON_LINES
                if raw.strip() or (empty and is_text):
                    yield number, _line(number, raw, is_text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def read_csv(path: Path) -> Iterator[tuple[int, Any]]:
    """The number of the last line and the fields by column of each row of a CSV file, whose first has names.

    UsageError for a file that cannot be read, or without names.
    """
    csv.field_size_limit(LONGEST)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _csv_rows(path, file)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _csv_rows(path: Path, file: IO[str]) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(file, strict=True)
    try:
        names = next(reader, [])
        if not names or len(set(names)) < len(names):
            raise UsageError(
                f"{path}: line 1: wanted names of columns, each once; got {', '.join(names)!r:.80}"
            )
        for fields in reader:
            if len(fields) == len(names):
                yield reader.line_num, dict(zip(names, fields, strict=True))
            elif fields:  # a line without any is none
                problem = f"wanted {len(names)} fields; got {len(fields)}"
                yield reader.line_num, WrongLine(problem)
    except (csv.Error, UnicodeDecodeError) as error:
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "CSV"
        raise UsageError(f"{path}: line {reader.line_num + 1}: no {what}: {error}") from None


def _line(number: int, raw: bytes, is_text: bool) -> Any:
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")
        return text if is_text else json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        return WrongLine(f"no {what}: {error}")


def _table_rows(path: Path) -> Iterator[Any]:
    """The rows of a parquet or arrow file, or of a folder of those, as a dataset of Hugging Face is saved."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise UsageError(f"{path}: tables are read with pyarrow: pip install pyarrow") from None
    files = [path]
    if path.is_dir():
        files = sorted(each for ending in TABLES for each in path.rglob(f"*{ending}"))
        if not files:
            raise UsageError(f"{path}: wanted a file, or a folder with {' or '.join(TABLES)} files")
    for file in files:
        try:
            if file.suffix.lower() == ".parquet":
                batches = pq.ParquetFile(file).iter_batches(batch_size=TOGETHER)
            else:
                batches = pa.ipc.open_stream(pa.memory_map(str(file)))
            for batch in batches:
                columns = [_without_nanoseconds(pa, column) for column in batch.columns]
                yield from pa.record_batch(columns, names=batch.schema.names).to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(f"{file}: no table that pyarrow reads: {error}") from None


def _without_nanoseconds(pa: Any, column: Any) -> Any:
    """A column with its times in microseconds: for finer ones pyarrow wants pandas."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"), safe=False)
    return column
