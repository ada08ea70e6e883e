"""Rows of a raw file to an output: .npy, or the columns of their texts and `embedding` as .parquet or .jsonl.

The output is replaced whole or stays as it was; few rows are in memory at a time. Knows files and arrays;
nothing of models.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.system.replaced_file import replacing
from graphml.workshop.text_files import NumberedText, TextFile

OUTPUTS: Final = (".npy", ".parquet", ".jsonl")
EMBEDDING: Final = "embedding"
_TOGETHER: Final = 2048
_COPIED: Final = 1 << 20


def check_output(source: TextFile, output: Path) -> None:
    """UsageError for an output that could not be written in the end, or is the file of the texts."""
    ending = output.suffix.lower()
    if ending not in OUTPUTS:
        raise UsageError(f"output: wanted a name that ends in {', '.join(OUTPUTS)}; got {output.name!r:.80}")
    if not output.parent.is_dir():
        raise UsageError(f"output: {output}: cannot be written: {output.parent} is no folder")
    if output.exists() and not output.is_file():
        raise UsageError(f"output: {output}: cannot be written: it is no plain file")
    if output.exists() and output.samefile(source.path):
        raise UsageError(f"output: {output}: wanted another file than that of the texts")
    if ending == ".npy":
        return
    if ending == ".parquet":
        _ = _schema(source)
    for text in source:
        if EMBEDDING in text.row:
            raise UsageError(
                f"{text.place}: has {EMBEDDING!r}, the column that {output.name} gets: wanted .npy"
            )
        if ending == ".jsonl" and source.ending == ".parquet":
            _ = _line(text)


def write_output(source: TextFile, output: Path, rows: Path, at: int, shape: tuple[int, int]) -> None:
    """Write the output from rows, float32 of that shape, behind the first `at` bytes of a file.

    UsageError where it cannot be written; the rows stay where they are.
    """
    ending = output.suffix.lower()
    try:
        with rows.open("rb") as file, replacing(output) as path:
            file.seek(at)
            if ending == ".npy":
                _write_npy(path, file, shape)
            elif ending == ".jsonl":
                _write_lines(path, source, file, shape[1])
            else:
                _write_table(path, source, file, shape[1])
    except OSError as error:
        kept = "all rows are kept, and the same command writes them"
        raise UsageError(f"output: {output}: {error.strerror or error}; {kept}") from None


def _rows(file: BinaryIO, count: int, width: int) -> Floats:
    """The next rows of a raw file."""
    return np.frombuffer(file.read(4 * width * count), "<f4").reshape(count, width)


def _write_npy(path: Path, file: BinaryIO, shape: tuple[int, int]) -> None:
    with path.open("wb") as written:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(written, header)
        shutil.copyfileobj(file, written, _COPIED)


def _write_lines(path: Path, source: TextFile, file: BinaryIO, width: int) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace") as written:  # as JSON does
        for text in source:
            written.write(_line(text, _rows(file, 1, width)[0].tolist()) + "\n")


def _line(text: NumberedText, row: list[float] | None = None) -> str:
    """The fields of a text with its row as JSON; UsageError for what JSON has no form of, as bytes."""
    try:
        return json.dumps({**text.row, EMBEDDING: row}, ensure_ascii=False)
    except TypeError as error:
        raise UsageError(f"{text.place}: {error}: wanted .npy or .parquet") from None


def _write_table(path: Path, source: TextFile, file: BinaryIO, width: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _schema(source)
    kind = pa.list_(pa.float32(), width)
    try:
        with pq.ParquetWriter(path, columns.append(pa.field(EMBEDDING, kind))) as written:
            for table in _tables(source, columns):
                flat = pa.array(_rows(file, len(table), width).reshape(-1))
                column = pa.FixedSizeListArray.from_arrays(flat, width)
                written.write_table(table.append_column(EMBEDDING, column))
    except pa.ArrowException as error:
        raise UsageError(f"{source.path}: its columns are no table: {error}; all rows are kept") from None


def _tables(source: TextFile, columns: Any) -> Iterator[Any]:
    """The texts' columns, a few rows at a time; a table's are not converted to Python's types and back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.ending == ".parquet":
        for batch in pq.ParquetFile(source.path).iter_batches(_TOGETHER):
            yield pa.Table.from_batches([batch], columns)
        return
    texts = iter(source)
    while together := [dict(text.row) for text in islice(texts, _TOGETHER)]:
        yield pa.Table.from_pylist(together, schema=columns)


def _schema(source: TextFile) -> Any:
    """The columns of a table of the texts' fields; of JSON lines those of all lines together."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise UsageError("output: tables are written with pyarrow: pip install pyarrow") from None
    if source.ending == ".parquet":
        return pq.read_schema(source.path)
    rows, schema = iter(source), pa.schema([])
    try:
        while together := [dict(text.row) for text in islice(rows, _TOGETHER)]:
            names = dict.fromkeys(name for fields in together for name in fields)
            arrays = {name: pa.array([fields.get(name) for fields in together]) for name in names}
            together_has = pa.schema([pa.field(name, array.type) for name, array in arrays.items()])
            schema = pa.unify_schemas([schema, together_has], promote_options="permissive")
    except pa.ArrowException as error:
        raise UsageError(f"{source.path}: no columns of a table, wanted .npy or .jsonl: {error}") from None
    return schema
