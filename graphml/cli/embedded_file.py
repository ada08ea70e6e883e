"""What `graphml embed -f FILE -o OUT` does: a file of texts to a file of rows, with a bar and a summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from graphml.api.model import Model
from graphml.cli.options.checks import check_new
from graphml.cli.terminal.console import Bars, say, write_json
from graphml.errors import UsageError
from graphml.workshop.embedded_files import PARTIAL, EmbedSettings, EmbedSummary, embed_file
from graphml.workshop.embedding_writers import check_output
from graphml.workshop.text_files import TextFile


def check_files(
    file: Path | None, output: Path | None, column: str | None, truncate: bool, force: bool
) -> None:
    """UsageError for options that want a file of texts where there is none, and for wrong files."""
    if file is None:
        flags = {
            "--output": output,
            "--column": column,
            "--truncate": truncate or None,
            "--force": force or None,
        }
        stated = next((flag for flag, value in flags.items() if value is not None), None)
        if stated is not None:
            raise UsageError(f"{stated}: wanted --file beside it: `graphml embed MODEL -f FILE -o OUT.npy`")
        return
    if output is None:
        raise UsageError("--file: wanted --output, a name that ends in .npy, .parquet or .jsonl, beside it")
    check_output(TextFile(file, column), output)
    if not output.with_name(output.name + PARTIAL).exists():  # else a job that goes on
        check_new("--output", output, force)


def check_alone(others: Mapping[str, object]) -> None:
    """UsageError for options that are about texts of the command line."""
    for flag, value in others.items():
        if value:
            raise UsageError(f"{flag}: wanted none beside --file; got {value!r:.80}")


def embed_to_file(
    opened: Model, file: Path, output: Path, settings: EmbedSettings, bars: Bars, json: bool
) -> None:
    """Run the job, and print what came: a line on stderr, or one JSON object."""
    try:
        summary = embed_file(opened, file, output, settings, partial(bars.report, "embed"))
    except KeyboardInterrupt:
        bars.close()
        say(f"graphml: {output}{PARTIAL} keeps the rows so far; the same command goes on")
        raise
    bars.close()
    if json:
        write_json({"output": str(output), **asdict(summary)})
    else:
        _say_what_came(output, summary)


def _say_what_came(output: Path, summary: EmbedSummary) -> None:
    kept = f", {summary.kept} of them before" if summary.kept else ""
    cut = f"; {summary.truncated} texts were cut" if summary.truncated else ""
    say(
        f"graphml: {output}: {summary.rows} rows of {summary.width} numbers{kept}; {summary.tokens} tokens "
        f"read in {summary.seconds:.1f} s{cut}"
    )
