"""Formats of rows: Markdown in llama-bench's columns, CSV, JSON, JSON lines or SQL.

Each row is yielded whole as soon as it is received. Knows rows; nothing of terminals. Measures nothing.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphml.bench.cells import (
    device,
    logits,
    notes,
    of_bandwidth,
    params,
    ratio,
    sides,
    size,
    speed,
    steps,
)
from graphml.bench.result_rows import SCALARS, ResultRow
from graphml.errors import GraphmlError
from graphml.inspect.dumps.node_names import printable

TABLE = "llama_bench"
Spell = Callable[[Iterable[ResultRow], Sequence[str]], Iterator[str]]

# Column -> width (negative: left-aligned), those of llama-bench's `get_field_width` for its own columns.
_WIDTHS = {
    "model": -30, "size": 10, "params": 10, "backend": -10, "threads": 7, "n_batch": 7, "n_ubatch": 8,
    "type_k": 6, "type_v": 6, "quant": -6, "place": -20, "gpu_layers": 10,
    "test": 15, "t/s": 20, "GB/s": 8, "of bandwidth": 12, "GFLOP/s": 8,
    "bound by": -8, "ms a step p50 / p90 / p99": 25, "logits": -14, "ratio": 22, "device": -30,
}  # fmt: skip
_FIRST = ("model", "size", "params", "backend", "threads")
_SETTINGS = ("n_batch", "n_ubatch", "type_k", "type_v", "quant", "place")
_COMPARED = ("ms a step p50 / p90 / p99", "logits", "ratio")  # of several sides
_LAST = ("test", "t/s", "GB/s", "of bandwidth", "GFLOP/s", "bound by")


def markdown(rows: Iterable[ResultRow], shown: Sequence[str] = ()) -> Iterator[str]:
    """A table; its t/s is the median and half the distance of the quartiles. shown: more columns."""
    columns: tuple[str, ...] = ()
    bandwidths: dict[str, float] = {}
    kept, head, compared = list[ResultRow](), "", "ratio" in shown
    for row in rows:
        if not columns:
            columns = (*_FIRST, *(name for name in shown if name != "ratio"), *_LAST)
            columns += (*_COMPARED * compared, "device")
            names = {name: name for name in columns} | {"ratio": f"ratio to {row.judge}"}
            rules = {name: "-" * (abs(_WIDTHS[name]) - 1) + ":-"[_WIDTHS[name] < 0] for name in columns}
            head = _line(columns, names) + _line(columns, rules)
        yield head + _line(columns, _cells(row))
        head = ""
        bandwidths[device(row)] = max(row.bandwidth_gb_s, bandwidths.get(device(row), 0.0))
        kept.append(row)
    if not kept:
        return
    version = kept[-1].build_commit or kept[-1].engine_version
    yield f"\nbuild: {version}; {kept[-1].cpu_info}{_memory(bandwidths)}\n"
    yield from sides(kept) if compared else ()
    yield from notes(kept)


def _memory(bandwidths: Mapping[str, float]) -> str:
    """The measured bandwidth of each device's memory."""
    known = {name: best for name, best in bandwidths.items() if best}
    if len(known) == 1:
        return f"; memory is read at {next(iter(known.values())):.1f} GB/s"
    return "".join(f"; memory of {name} gives {best:.1f} GB/s" for name, best in known.items())


def _line(columns: Sequence[str], cells: Mapping[str, str]) -> str:
    padded = [
        cells[name].rjust(_WIDTHS[name]) if _WIDTHS[name] > 0 else cells[name].ljust(-_WIDTHS[name])
        for name in columns
    ]
    return f"| {' | '.join(padded)} |\n"


def _cells(row: ResultRow) -> dict[str, str]:
    refused = row.refused.split(", ")
    of_speed = (
        {}
        if "t/s" in refused
        else {
            "GB/s": f"{row.gb_s:.1f}",
            "of bandwidth": of_bandwidth(row),
            "GFLOP/s": f"{row.gflop_s:.1f}",
            "bound by": row.bound,
        }
    )
    return {
        "model": printable(row.model_type).replace("|", "\\|"),
        "size": size(row.model_size),
        "params": params(row.model_n_params),
        "backend": row.backends,
        "threads": str(row.n_threads),
        **{name: str(getattr(row, name)) for name in _SETTINGS},
        "gpu_layers": "" if row.gpu_layers < 0 else str(row.gpu_layers),
        "test": row.test,
        **dict.fromkeys(("GB/s", "of bandwidth", "GFLOP/s", "bound by"), ""),
        **of_speed,
        "t/s": speed(row),
        "ms a step p50 / p90 / p99": steps(row),
        "logits": logits(row),
        "ratio": ratio(row),
        "device": device(row).replace("|", "\\|"),
    }


def comma_separated(rows: Iterable[ResultRow], shown: Sequence[str] = ()) -> Iterator[str]:
    """CSV with every field but the samples."""
    for number, row in enumerate(rows):
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
        if not number:
            out.write(",".join(SCALARS) + "\n")
        writer.writerow(
            [int(value) if isinstance(value, bool) else value for value in _scalars(row).values()]
        )
        yield out.getvalue()


def json_array(rows: Iterable[ResultRow], shown: Sequence[str] = ()) -> Iterator[str]:
    """One JSON array of objects, like llama-bench's; complete even if measuring ends with an error."""
    before = "["
    try:
        for row in rows:
            text = json.dumps(dataclasses.asdict(row), indent=2, ensure_ascii=False, allow_nan=False)
            yield before + "\n" + "\n".join("  " + line for line in text.splitlines())
            before = ","
    except (GraphmlError, KeyboardInterrupt):
        if before == ",":
            yield "\n]\n"
        raise
    yield "[]\n" if before == "[" else "\n]\n"


def json_lines(rows: Iterable[ResultRow], shown: Sequence[str] = ()) -> Iterator[str]:
    """An object a line."""
    for row in rows:
        yield json.dumps(dataclasses.asdict(row), ensure_ascii=False, allow_nan=False) + "\n"


def sql(rows: Iterable[ResultRow], shown: Sequence[str] = ()) -> Iterator[str]:
    """A table and a statement for each row, for sqlite and similar, with every field but the samples."""
    types = {"str": "TEXT", "int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
    kinds = {
        field.name: types[str(field.type)] for field in dataclasses.fields(ResultRow) if field.name in SCALARS
    }
    columns = ",\n".join(f"  {name} {kind}" for name, kind in kinds.items())
    head = f"CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);\n\n"
    for row in rows:
        values = ", ".join(_literal(value) for value in _scalars(row).values())
        yield f"{head}INSERT INTO {TABLE} ({', '.join(SCALARS)}) VALUES ({values});\n"
        head = ""


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\0", "").replace("'", "''") + "'"
    return str(int(value)) if isinstance(value, bool) else repr(value)


def _scalars(row: ResultRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in SCALARS}


FORMATS: Mapping[str, Spell] = {
    "md": markdown, "csv": comma_separated, "json": json_array, "jsonl": json_lines, "sql": sql,
}  # fmt: skip
