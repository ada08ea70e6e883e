"""Formats of rows: Markdown in llama-bench's columns, CSV, JSON, JSON lines or SQL; figures of a row as text.

Figures that are too noisy are marked. Each row is yielded whole as soon as it is received. Knows rows;
nothing of terminals. Measures nothing.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphml.bench import written_rows
from graphml.bench.logit_check import WRONG
from graphml.bench.result_rows import SCALARS, ResultRow
from graphml.bench.written_rows import aligned, heads
from graphml.errors import GraphmlError
from graphml.inspect.dumps.node_names import printable

TOO_NOISY = "too noisy"
BUSY_SHARE = 0.25  # of the processors, from which on others disturb
WHAT_TO_DO = (
    "the quartiles of the rounds lie further apart than their median, so it is no figure; end what else "
    "runs, then measure again with more rounds (-r 9) or more tokens"
)


def speed(row: ResultRow) -> str:
    """Median and half the distance of the quartiles, `*` if that is large; or a mark for no figure."""
    if "t/s" in row.refused:
        return TOO_NOISY
    return written_rows.speed(row)


def ratio(row: ResultRow) -> str:
    """The same for the ratio; "" if there is none."""
    if "ratio" in row.refused:
        return TOO_NOISY
    digits = 2 if row.ratio >= 0.1 else 4
    spread = (row.ratio_q3 - row.ratio_q1) / 2
    return f"{row.ratio:.{digits}f} ± {spread:.{digits}f}" if row.peer else ""


def of_bandwidth(row: ResultRow) -> str:
    """The part of its memory's bandwidth that a row used, marked above 1; "" if one is not known."""
    if not row.bandwidth_gb_s or "t/s" in row.refused:
        return ""
    return f"{row.of_bandwidth:.0%}" + "?" * (row.of_bandwidth > 1)


def logits(row: ResultRow) -> str:
    """Whether the logits of a row's side are the reference's, and their error: "ok 1.2e-04"."""
    return row.correct + (f" {row.logits_nmse:.1e}" if row.logits_nmse > 0 else "")


def steps(row: ResultRow) -> str:
    """Percentiles of a decode step in ms; "" of a test without."""
    three = (row.step_p50_ms, row.step_p90_ms, row.step_p99_ms)
    return " / ".join(f"{percentile:.2f}" for percentile in three) if row.step_p50_ms else ""


def of_side(row: ResultRow) -> str:
    """What a side cost besides its time: "cpu: opened in 0.21 s, programs in 1.30 s, at most 312.00 MiB"."""
    parts = [f"opened in {row.load_ms / 1e3:.2f} s"]
    parts += [f"programs made in {row.compile_ms / 1e3:.2f} s"] * (row.compile_ms > 0)
    parts += [f"at most {size(row.peak_bytes)} of RAM"] * (row.peak_bytes > 0)
    parts += [f"{size(row.device_bytes)} on the device"] * (row.device_bytes > 0)
    parts += [f"{row.joules_per_token:.3g} J a token"] * (row.joules_per_token > 0)
    return f"{row.backends}: {', '.join(parts)}"


def device(row: ResultRow) -> str:
    """The device of a row, as "lavapipe on EPYC (processor; Vulkan, Mesa 22.3.6)", or the host processor."""
    if not row.driver:
        return printable(row.device)
    made_of = f"{_software(row)} on {row.cpu_info}" if row.device_kind == "processor" else row.device
    return printable(f"{made_of} ({row.device_kind}; {row.driver})")


def _software(row: ResultRow) -> str:
    """What makes a device of the processor: lavapipe, whose renderer is llvmpipe, or "PoCL"."""
    if row.device.startswith("llvmpipe"):
        return "lavapipe"
    return re.split(r"[ ,]*\d", row.driver, maxsplit=1)[0] or row.device


def notes(rows: Sequence[ResultRow]) -> Iterator[str]:
    """Explanations of the marks that a table of these rows has, and what may have disturbed it."""
    if not rows:
        return
    if any(row.noisy for row in rows):
        yield written_rows.NOISE_NOTE
    if any(row.refused for row in rows):
        yield f"{TOO_NOISY}: {WHAT_TO_DO}\n"
    if any(of_bandwidth(row).endswith("?") for row in rows):
        yield (
            "?: more than the bandwidth that was measured cannot be: caches hold a part of what is read, or "
            "the machine was busy while it was measured\n"
        )
    yield from _disturbances(rows)
    if any(row.correct == WRONG for row in rows):
        yield f"{WRONG}: the logits are not those of the reference, so no ratio counts\n"
    for why in dict.fromkeys(row.why_unchecked for row in rows if row.why_unchecked):
        yield f"logits: not compared with the reference's: {printable(why)}\n"


def _disturbances(rows: Sequence[ResultRow]) -> Iterator[str]:
    """Warnings of other work on the machine, before the run and during it."""
    first = rows[0]
    if first.load_average > BUSY_SHARE * first.cpu_cores:
        yield (
            f"busy: before the first run the load average was {first.load_average:.2f} on "
            f"{first.cpu_cores} processors\n"
        )
    worst = max(rows, key=lambda row: row.others_busy)
    if worst.others_busy > BUSY_SHARE * worst.cpu_cores:
        yield (
            f"busy: other processes kept {worst.others_busy:.1f} of {worst.cpu_cores} processors busy during "
            f"{worst.test}\n"
        )


def sides(rows: Sequence[ResultRow]) -> Iterator[str]:
    """A line for each side, of its last row: what it cost besides its time; and why energy is missing."""
    for row in {row.backends: row for row in rows}.values():
        yield f"{of_side(row)}\n"
    why = rows[-1].why_no_energy
    if why:
        yield f"energy: not known: {printable(why)}\n"


def size(n_bytes: int) -> str:
    """As llama-bench writes it: "606.53 MiB"."""
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes < 2**30 else f"{n_bytes / 2**30:.2f} GiB"


def params(count: int) -> str:
    """As llama-bench writes it: "1.10 B"."""
    return f"{count / 1e6:.2f} M" if count < 10**9 else f"{count / 1e9:.2f} B"


TABLE = "llama_bench"
Spell = Callable[[Iterable[ResultRow], Sequence[str]], Iterator[str]]

# Column -> width (negative: left-aligned), those of llama-bench's `get_field_width` for its own columns.
_WIDTHS = {
    "model": -30, "size": 10, "params": 10, "backend": -10, "threads": 7, "n_batch": 7, "n_ubatch": 8,
    "type_k": 6, "type_v": 6, "quant": -6, "place": -20, "gpu_layers": 10,
    "test": 15, "t/s": 20, "GB/s": 8, "of bandwidth": 12, "GFLOP/s": 8,
    "bound by": -8, "ms a step p50 / p90 / p99": 25, "logits": -14, "ratio": 22,
}  # fmt: skip
_FIRST = ("model", "size", "params", "backend", "threads")
_SETTINGS = ("n_batch", "n_ubatch", "type_k", "type_v", "quant", "place")
_COMPARED = ("ms a step p50 / p90 / p99", "logits", "ratio")  # of several sides
_LAST = ("test", "t/s", "GB/s", "of bandwidth", "GFLOP/s", "bound by")


def markdown(rows: Iterable[ResultRow], shown: Sequence[str] = ()) -> Iterator[str]:
    """A table; its t/s is the median and half the distance of the quartiles. shown: more columns."""
    columns: tuple[str, ...] = ()
    widths: list[tuple[str, int, None]] = []
    bandwidths: dict[str, float] = {}
    kept, head, compared = list[ResultRow](), "", "ratio" in shown
    for row in rows:
        if not columns:
            columns = (*_FIRST, *(name for name in shown if name != "ratio"), *_LAST)
            columns += _COMPARED * compared
            names = {"ratio": f"ratio to {row.judge}"}
            widths = [(names.get(name, name), _WIDTHS[name], None) for name in columns]
            head = heads(widths)
        cells = _cells(row)
        yield head + aligned(widths, [cells[name] for name in columns])
        head = ""
        bandwidths[device(row)] = max(row.bandwidth_gb_s, bandwidths.get(device(row), 0.0))
        kept.append(row)
    if not kept:
        return
    version = kept[-1].build_commit or kept[-1].engine_version
    yield f"\nbuild: {version}; {kept[-1].cpu_info}{_memory(bandwidths)}\n"
    for backends, text in {row.backends: device(row) for row in kept if row.driver}.items():
        yield f"{backends}: {text}\n"
    yield from sides(kept) if compared else ()
    yield from notes(kept)


def _memory(bandwidths: Mapping[str, float]) -> str:
    """The measured bandwidth of each device's memory."""
    known = {name: best for name, best in bandwidths.items() if best}
    if len(known) == 1:
        return f"; memory is read at {next(iter(known.values())):.1f} GB/s"
    return "".join(f"; memory of {name} gives {best:.1f} GB/s" for name, best in known.items())


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
