"""`graphml cvector`: control vectors from pairs of texts, by the method of llama.cpp's cvector-generator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import check_file, check_new, check_not_read, check_target, text_of
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars
from graphml.errors import UsageError
from graphml.system.progress_labels import size
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing
from graphml.weights.adapter_writing import write_control_vectors
from graphml.workshop.control_directions import Method, control_directions, lines_of


@grouped
def cvector(
    opening: options.Running,
    positive: Annotated[
        Path,
        typer.Option("--positive-file", "--positive", metavar="FILE", show_default=False,
                     help="Texts of one kind, a line each; \\\\n is a line end."),
    ],
    negative: Annotated[
        Path,
        typer.Option("--negative-file", "--negative", metavar="FILE", show_default=False,
                     help="As many texts of the other kind."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.gguf", show_default=False, help="Output file."),
    ],
    model: options.Model = None,
    method: Annotated[
        Method, typer.Option("--method", help="First principal component of the differences, or their mean.")
    ] = "pca",
    pca_iter: Annotated[
        int, typer.Option("--pca-iter", min=1, help="Maximum number of iterations of PCA.")
    ] = 1000,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:  # fmt: skip
    """Make control vectors from pairs of texts: how what layers give differs between the two of a pair.

    Line N of one file and line N of the other are a pair. `graphml run --control-vector FILE` steers with it.
    """
    check_file("--positive-file", positive)
    check_file("--negative-file", negative)
    check_target("--output", output, ".gguf")
    check_new("--output", output, force)
    texts = [lines_of(text_of(path), str(path)) for path in (positive, negative)]
    if len(texts[0]) != len(texts[1]):
        raise UsageError(
            f"--negative-file: wanted {len(texts[0])} texts, one for each of {positive}; got {len(texts[1])}"
        )
    pairs = list(zip(*texts, strict=True))
    check_not_read("--output", output, positive, negative)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        check_not_read("--output", output, *opened.executor.file.paths)
        directions = control_directions(opened, pairs, method, pca_iter, bars.report)
        hint = opened.metadata.text("general.architecture")
    try:
        with replacing(output) as partial:
            write_control_vectors(partial, hint, directions)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {reason(error)}") from None
    print(f"{output}: {size(output.stat().st_size)}, {len(directions)} directions of {len(pairs)} pairs")
