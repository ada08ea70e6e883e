"""`graphml bench compare`: two results of benchmarks, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from graphml.bench import compared_results as comparing
from graphml.cli.options.options import Json
from graphml.cli.terminal.console import write_json
from graphml.errors import UsageError

Tolerance = Annotated[
    str,
    typer.Option(
        "--fail-over", metavar="3%", help="Exit with 1 if a row is slower by more, beyond the spread."
    ),
]


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="Results from before.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Results from after.")],
    fail_over: Tolerance = "3%",
    by: Annotated[
        str, typer.Option("--by", help="t/s, or ratio: to the peer, which a slower machine leaves.")
    ] = "t/s",
    json: Json = False,
) -> None:
    """Compare two results of `graphml bench -o json` (or llama-bench's), row by row."""
    tolerance = _percent(fail_over)
    before, after = comparing.read(a), comparing.read(b)
    changes = comparing.compare(before, after, by)
    only_a, only_b = comparing.left_over(before, after)
    if json:
        write_json({
            "tolerance": tolerance,
            "rows": [
                {"model": change.model, "backend": change.backend, "threads": change.threads,
                 "test": change.test, "a": change.a, "b": change.b, "change": change.change,
                 "verdict": comparing.verdict(change, tolerance)}
                for change in changes
            ],
            "only_a": only_a,
            "only_b": only_b,
        })  # fmt: skip
    else:
        print(comparing.markdown(changes, tolerance), end="")
        for path, names in ((a, only_a), (b, only_b)):
            if names:
                print("\n".join([f"\nonly in {path}:", *(f"- {name}" for name in names)]))
    if any(change.slower(tolerance) for change in changes):
        raise typer.Exit(1)


def _percent(text: str) -> float:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*%?", text.strip())
    if match is None:
        raise UsageError(f"--fail-over: wanted a percentage such as 3%; got {text!r}")
    return float(match[1]) / 100
