"""Rows as a page to publish, in one file without references: charts, table, machine, commands, every round.

`python -m benchmarks.results_page RESULTS.json... --command "graphml bench -m smollm2" > report.html`. Knows
rows; `bar_charts` draws.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.bar_charts import Bar, chart
from benchmarks.stored_rows import read_rows
from graphml.bench.logit_check import WRONG
from graphml.bench.result_rows import ResultRow
from graphml.bench.row_formats import (
    device,
    logits,
    notes,
    of_bandwidth,
    of_side,
    params,
    ratio,
    size,
    speed,
    steps,
)
from graphml.inspect.dumps.node_names import printable

# Title of a chart -> whether its tests have a prompt and tokens after it.
KINDS = {
    "Reading a prompt": (True, False),
    "Generating": (False, True),
    "Reading and generating": (True, True),
}
# Title of a column, whether it is a number, and its cell.
_Column = tuple[str, bool, Callable[[ResultRow], str]]
_CASE: Sequence[_Column] = (("case", False, lambda row: printable(row.suite_case)),)
_FIRST: Sequence[_Column] = (
    ("model", False, lambda row: printable(row.model_type)),
    ("backend", False, lambda row: row.backends),
    ("threads", True, lambda row: str(row.n_threads)),
)
_LAST: Sequence[_Column] = (
    ("test", False, lambda row: row.test),
    ("tokens/s", True, speed),
    ("GB/s", True, lambda row: "" if "t/s" in row.refused else f"{row.gb_s:.1f}"),
    ("of bandwidth", True, of_bandwidth),
    ("bound by", False, lambda row: "" if "t/s" in row.refused else row.bound),
)
_COMPARED: Sequence[_Column] = (
    ("ms a step, p50 / p90 / p99", True, steps),
    ("logits", False, logits),
)
_DEVICE: Sequence[_Column] = (("device", False, device),)
_JUDGED: Sequence[_Column] = (
    ("wanted", False, lambda row: row.wanted),
    ("verdict", False, lambda row: row.verdict),
)


def page(rows: Sequence[ResultRow], shown: Sequence[str] = (), commands: Sequence[str] = ()) -> Iterator[str]:
    """The page. shown: more columns, by field; commands: the command lines that measured these rows."""
    if rows:
        columns = _columns(rows[0], shown)
        yield _begin(rows[0], shown)
        yield from (_line([(cell(row), number) for _, number, cell in columns]) for row in rows)
        yield _end(rows, commands)


def _columns(first: ResultRow, shown: Sequence[str]) -> list[_Column]:
    more: list[_Column] = [
        (name, False, lambda row, name=name: str(getattr(row, name)))  # type: ignore[misc]
        for name in shown
        if name != "ratio"
    ]
    case, judged = (_CASE, _JUDGED) if first.suite_case else ((), ())
    compared = [*_COMPARED, (f"ratio to {first.judge}", True, ratio)] if first.judge else []
    return [*case, *_FIRST, *more, *_LAST, *compared, *_DEVICE, *judged]


def _begin(first: ResultRow, shown: Sequence[str]) -> str:
    style = Path(__file__).with_name("results.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = html.escape(f"graphml bench: {printable(first.model_type)}, {printable(first.cpu_info)}")
    heads = "".join(
        f'<th scope="col"{_NUMBER * number}>{html.escape(name)}</th>'
        for name, number, _ in _columns(first, shown)
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n<main>\n<header><h1>Tokens per second</h1>\n"
        f"<p>graphml bench, {html.escape(first.test_time[:10] or 'no date')}, "
        f"{html.escape(printable(first.cpu_info))}</p></header>\n"
        f'<section class="rows"><h2>Results</h2>\n<div class="wide" tabindex="0">\n'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n"
    )


_NUMBER = ' class="number"'


def _line(cells: Iterable[tuple[str, bool]]) -> str:
    return "<tr>" + "".join(f"<td{_NUMBER * n}>{html.escape(text)}</td>" for text, n in cells) + "</tr>\n"


def _end(rows: Sequence[ResultRow], commands: Sequence[str]) -> str:
    marks = filter(None, (note.strip() for note in notes(rows)))
    told = "".join(f'<p class="note">{html.escape(one)}</p>\n' for one in marks)
    parts = [_charts(rows), _facts(rows), _commands(commands), _how(rows), _rounds(rows)]
    return f"</tbody></table></div>\n{told}</section>\n" + "".join(parts) + "</main>\n</body>\n</html>\n"


def _charts(rows: Sequence[ResultRow]) -> str:
    """A chart for each kind of test of each model, and one of the ratios."""
    found = []
    sides = list(dict.fromkeys(row.backends for row in rows))
    models = list(dict.fromkeys("" if row.suite_case else printable(row.model_type) for row in rows))
    for model in models:
        for title, kind in KINDS.items():
            of = [
                row
                for row in rows
                if (row.n_prompt > 0, row.n_gen > 0) == kind and model in ("", printable(row.model_type))
            ]
            bars = [_bar(row, rows, sides) for row in of]
            if bars:
                roof = any(bar.mark for bar in bars)
                said = "tokens per second" + ("; dashed: what the memory's bandwidth allows" if roof else "")
                found.append(_figure(", ".join(filter(None, (title, model))), said, bars))
    for peer in dict.fromkeys(row.peer for row in rows if row.peer):
        bars = [_ratio_bar(row, rows, sides) for row in rows if row.peer == peer]
        found.append(_figure(f"Speed in proportion to {peer}", f"dashed: as fast as {peer}", bars))
    return f'<section class="charts">\n{"".join(found)}</section>\n'


def _figure(title: str, said: str, bars: Sequence[Bar]) -> str:
    head = f"<figure><figcaption><h2>{html.escape(title)}</h2><p>{html.escape(said)}</p></figcaption>"
    return f"{head}\n{chart(bars, title)}\n</figure>\n"


def _bar(row: ResultRow, rows: Sequence[ResultRow], sides: Sequence[str]) -> Bar:
    """A bar of speed; its mark is the roof of generation: the speed at the memory's bandwidth."""
    refused = "t/s" in row.refused or row.correct == WRONG
    roof = row.median_ts / row.of_bandwidth if row.of_bandwidth and row.n_gen and not refused else 0.0
    value = None if refused else row.median_ts
    said = WRONG if row.correct == WRONG else speed(row)
    return Bar(_name(row, rows), said, sides.index(row.backends), value, row.q1_ts, row.q3_ts, roof)


def _ratio_bar(row: ResultRow, rows: Sequence[ResultRow], sides: Sequence[str]) -> Bar:
    """A bar of a ratio; its mark is the peer itself."""
    value = None if "ratio" in row.refused else row.ratio
    name = _full_name(row, rows) + f", {row.test}" * bool(row.suite_case)
    return Bar(name, ratio(row), sides.index(row.backends), value, row.ratio_q1, row.ratio_q3, 1.0)


def _name(row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """The name that distinguishes a bar: a suite's case, or test and side, and settings that differ."""
    parts = [row.suite_case] if row.suite_case else [row.test, row.backends]
    if len({one.n_threads for one in rows}) > 1:
        parts.append(f"{row.n_threads} thread{'s' * (row.n_threads > 1)}")
    for name in ("n_batch", "n_ubatch", "type_k", "type_v", "quant", "place", "gpu_layers"):
        if not row.suite_case and len({getattr(one, name) for one in rows}) > 1:
            parts.append(f"{name} {getattr(row, name)}")
    return printable(", ".join(parts))


def _full_name(row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """The same for rows of all models."""
    several = not row.suite_case and len({one.model_type for one in rows}) > 1
    return f"{printable(row.model_type)}, " * several + _name(row, rows)


def _facts(rows: Sequence[ResultRow]) -> str:
    """The machine, the sides and the models."""
    one = rows[0]
    machine = {
        "Processor": f"{one.cpu_info}, {one.cpu_cores} logical processors",
        "Governor": one.cpu_governor,
        "System": one.os,
        "Load at the beginning": f"{one.load_average:.2f}",
        "Python": f"{one.python}; NumPy {one.numpy}, llvmlite {one.llvmlite}",
        "Commit of graphml": one.build_commit,
    }
    found = [_list("Machine", machine)]
    for name in dict.fromkeys(row.backends for row in rows):
        row = [one for one in rows if one.backends == name][-1]
        best = max(one.bandwidth_gb_s for one in rows if one.backends == name)
        how = "copies on it, read and written" if row.driver else "plain reads"
        facts = {
            "Version": row.engine_version,
            "Built for": row.level,
            "Device": device(row),
            "Driver": f"{row.driver} ({row.device_kind})" if row.driver else "",
            "Memory gives": f"{best:.1f} GB/s at best ({how})" if best else "not measured",
            "Cost": of_side(row),
            "Energy": f"not known: {row.why_no_energy}" if row.why_no_energy else "",
        }
        found.append(_list(f"Side: {name}", facts))
    for row in {row.model_filename: row for row in rows}.values():
        facts = {
            "File": row.model_filename,
            "Size": f"{size(row.model_size)}, {params(row.model_n_params)} weights",
            "SHA-256": row.model_sha256,
        }
        found.append(_list(f"Model: {row.model_type}", facts))
    return f'<section class="facts">\n{"".join(found)}</section>\n'


def _list(title: str, facts: dict[str, str]) -> str:
    lines = "".join(
        f"<dt>{name}</dt><dd>{html.escape(printable(value))}</dd>" for name, value in facts.items() if value
    )
    return f"<div><h2>{html.escape(printable(title))}</h2><dl>{lines}</dl></div>\n"


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    lines = html.escape("\n".join(printable(one) for one in commands))
    return f"<section><h2>Command</h2><pre>{lines}</pre></section>\n"


def _how(rows: Sequence[ResultRow]) -> str:
    counts = sorted({len(row.samples_ts) for row in rows})
    rounds = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    turns = "The sides took turns, round by round. " if len({row.backends for row in rows}) > 1 else ""
    text = (
        f"{turns}Figures are medians of {rounds} rounds ± half the distance of their quartiles (whiskers: "
        "the quartiles). A ratio is a row's speed to that of the side that the column names, the median over "
        "the rounds; a side whose logits are not the reference's has none. Tokens are random; sampling, "
        "tokenising and compiling are not in the time."
    )
    return f"<section><h2>How it was measured</h2><p>{text}</p></section>\n"


def _rounds(rows: Sequence[ResultRow]) -> str:
    """Every round of every row, in a collapsed section."""
    lines = "".join(
        _line(
            [(_full_name(row, rows), False), (row.test, False), (row.backends, False)]
            + [(f"{value:.2f}", True) for value in (row.min_ts, row.q1_ts, row.q3_ts, row.max_ts)]
            + [(" ".join(f"{value:.2f}" for value in row.samples_ts), False)]
        )
        for row in rows
    )
    names = ("row", "test", "backend", "least", "first quartile", "third quartile", "most", "rounds")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        "<section><details><summary>Every round, tokens per second</summary>"
        f'<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{lines}</tbody></table></div></details></section>\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page of the files that the command line names."""
    parser = argparse.ArgumentParser(prog="results_page", description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS.json")
    parser.add_argument(
        "--command", action="append", default=[], help="what measured them, as the page says it"
    )
    asked = parser.parse_args(arguments)
    rows = read_rows(asked.results)
    shown = ["ratio"] if any(row.judge for row in rows) else []
    sys.stdout.writelines(page(rows, shown, asked.command))


if __name__ == "__main__":
    main()
