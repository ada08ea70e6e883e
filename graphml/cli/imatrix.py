"""`graphml imatrix`: how strongly a text uses each weight's columns, by the method of llama-imatrix."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from graphml.api.model import Model
from graphml.api.saved_file import model_identity
from graphml.cli.options import options
from graphml.cli.options.checks import check_not_read, check_target
from graphml.cli.options.measured_text import ids_and_beginning, naming_text, text_to_measure
from graphml.cli.options.opening import find, load
from graphml.cli.options.spread import check_engines, spread_on_ray
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars
from graphml.cluster.cluster_options import EnginesOptions
from graphml.errors import UsageError
from graphml.system.progress_labels import size
from graphml.workshop.chunk_work import spread_importance
from graphml.workshop.importance import Importance, importance, n_chunks_seen
from graphml.workshop.importance_file import OLD_FORM, read_importance, read_with_keys, write_importance

BEGUN = ".begun.gguf"
"""Behind the output's name: the file that a run which was stopped goes on from."""
RUN = "graphml.run"
Files = list[Path]


@grouped
def imatrix(
    opening: options.Running,
    engines: EnginesOptions,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", show_default=False,
            help="FILE.gguf, or FILE.dat for llama.cpp's older form.",
        ),
    ],
    model: options.Model = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", show_default=False, help="The text; -: stdin."),
    ] = None,
    n_ctx: Annotated[
        int, typer.Option("-c", "--ctx-size", "--ctx", min=4, help="Tokens per chunk.")
    ] = 512,
    chunks: Annotated[int, typer.Option("--chunks", min=-1, help="Maximum number of chunks; -1: all.")] = -1,
    process_output: Annotated[
        bool, typer.Option("--process-output", help="The output matrix too.")
    ] = False,
    save_every: Annotated[
        int, typer.Option("--save-every", min=1, metavar="N", help="Chunks that a stop may cost.")
    ] = 10,
    in_files: Annotated[
        Files | None,
        typer.Option("--in-file", metavar="FILE", show_default=False, help="Add what this file has seen."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:  # fmt: skip
    """Collect what a text's tokens give each weight to read: `graphml quantize --imatrix` wants it.

    Without --file, those of --in-file are added up.
    """
    if chunks == 0:
        raise UsageError("--chunks: wanted at least 1, or -1 for all; got 0")
    check_engines(engines)
    check_target("--output", output, ".gguf", OLD_FORM)
    if output.exists() and not force:
        raise UsageError(f"--output: {output} is there already; --force overwrites it")
    if file is None and not in_files:
        raise UsageError("--file: wanted a text, or --in-file FILE to add up")
    check_not_read("--output", output, file)
    others = [(str(path), read_importance(path)) for path in in_files or ()]
    if file is not None:
        limit = None if chunks < 0 else chunks
        seen = _collect(
            opening, engines, model, file, output, n_ctx, limit, process_output, save_every, others
        )
    elif model is not None:
        raise UsageError(
            "--file: wanted a text for the model; without one the files of --in-file are added up"
        )
    else:
        seen = Importance(chunk_size=others[0][1].chunk_size)
    for source, other in others:
        seen.add_all(other, source)
    write_importance(output, seen)
    _begun(output).unlink(missing_ok=True)
    unused = sum(int((counts == 0).sum()) for counts in seen.counts.values())
    experts = f"; {unused} matrices of experts had no token" if unused else ""
    print(
        f"{output}: {size(output.stat().st_size)}, {len(seen.sums)} weights, {seen.n_chunks} chunks{experts}"
    )


def _collect(
    opening: options.Running, engines: EnginesOptions, model: str | None, file: Path, output: Path,
    n_ctx: int, chunks: int | None, process_output: bool, save_every: int,
    others: Sequence[tuple[str, Importance]],
) -> Importance:  # fmt: skip
    """What the text's chunks have shown, those of a run that was stopped among them.

    others: names of files, and what is added of them.
    """
    text = text_to_measure(file)
    with naming_text(file), Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        check_not_read("--output", output, *opened.executor.file.paths)
        ids, bos = ids_and_beginning(opened, text)
        run = _run(opened, ids, n_ctx, bos, process_output)
        begun = _begun(output)
        seen = _begun_by(begun, run)
        n_chunks = n_chunks_seen(len(ids), n_ctx, chunks)
        if seen is not None and seen.n_chunks >= n_chunks:
            seen = None
        if seen is not None:
            print(f"{begun}: goes on behind {seen.n_chunks} chunks", file=sys.stderr)
        bars.report("imatrix", 0, n_chunks)
        if engines.ray is None:
            steps = importance(opened, ids, n_ctx, chunks, bos, process_output, seen)
        else:
            spread = spread_on_ray(opened, engines)
            steps = spread_importance(spread, ids, n_ctx, n_chunks, bos, process_output, seen)
        for number, seen in enumerate(steps):
            for source, other in others if number == 0 else ():  # before all chunks are computed
                seen.check_same_model(other, source)
            bars.report("imatrix", seen.n_chunks, n_chunks)
            if seen.n_chunks % save_every == 0 and seen.n_chunks < n_chunks:
                write_importance(begun, seen, {RUN: run})
    assert seen is not None
    seen.datasets = (str(file),)
    return seen


def _begun(output: Path) -> Path:
    return output.with_name(output.name + BEGUN)


def _run(opened: Model, ids: Sequence[int], n_ctx: int, bos: int | None, process_output: bool) -> str:
    """What two runs have in common that one may go on from the other."""
    digest = hashlib.sha256(np.asarray(ids, np.int64).tobytes())
    identity = sorted(model_identity(opened.executor, opened.executor.options).items())
    digest.update(repr((identity, n_ctx, bos, process_output)).encode())
    return digest.hexdigest()


def _begun_by(begun: Path, run: str) -> Importance | None:
    """What a run of the same text and model has left."""
    if not begun.is_file():
        return None
    try:
        seen, keys = read_with_keys(begun)
    except UsageError:
        return None
    return seen if keys.get(RUN) == run else None
