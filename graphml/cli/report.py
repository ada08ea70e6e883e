"""`graphml report`: one zip to attach to a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.api.model import Model
from graphml.cli import doctor
from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, remark
from graphml.errors import UsageError
from graphml.inspect.bug_report import report as gather
from graphml.inspect.bug_report import write_zip


@grouped
def report(
    opening: options.Running,
    model: options.Model = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.zip", help="Output file.")] = Path(
        "graphml-report.zip"
    ),
) -> None:
    """Write a bug report: graphs, memory plan, placement, fusions, a small profile, facts of the machine.

    No weights, no vocabulary, no prompts and no folders are in it. Prints its path.
    """
    with Bars() as bars:
        check_target("--output", output, ".zip")
        path = find(model, opening, bars)
        wrong: list[UsageError] = []

        def opened() -> Model:
            try:
                return load(path, opening, bars)
            except UsageError as error:  # of an option, not of the model
                wrong.append(error)
                raise

        files = gather(path, opened, lambda: doctor.facts(opening.threads))
    if wrong:
        raise wrong[0]
    try:
        write_zip(files, output)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written: {error.strerror or error}") from None
    if "errors.txt" in files:
        remark("not all of it could be made; errors.txt in it says why")
    print(output)
