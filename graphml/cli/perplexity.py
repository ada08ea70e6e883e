"""`graphml perplexity`: how well a model predicts a text; the method is llama-perplexity's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from graphml.api.perplexity import LEAST, chunk_of
from graphml.api.perplexity import perplexity as estimates
from graphml.cli.options import options
from graphml.cli.options.checks import check_not_read, check_target
from graphml.cli.options.measured_text import ids_and_beginning, naming_text, text_to_measure
from graphml.cli.options.opening import find, load, model_and_word
from graphml.cli.options.prompts import STDIN
from graphml.cli.options.spread import check_engines, spread_on_ray
from graphml.cli.options.typer_options import grouped
from graphml.cli.scored_tasks import score_tasks
from graphml.cli.terminal.console import Bars, write_json
from graphml.cluster.cluster_options import EnginesOptions
from graphml.errors import UsageError
from graphml.workshop.base_logits import open_base
from graphml.workshop.chunk_work import spread_perplexity
from graphml.workshop.divergence import Figure
from graphml.workshop.strided import strided, strided_chunk
from graphml.workshop.text_scores import divergences, write_base

_BEFORE_A_FILE = ("-f", "--file", "-bf", "--binary-file")
"""What llama-perplexity has between `--hellaswag` and the file."""


@grouped
def perplexity(
    opening: options.Running,
    engines: EnginesOptions,
    model: options.Model = None,
    word: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The text, in place of --file.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Text file in UTF-8; without it, or as -, stdin is the text."
        ),
    ] = None,
    n_ctx: Annotated[
        int | None,
        typer.Option(
            "-c", "--ctx-size", "--ctx", min=LEAST, help="Tokens per chunk.",
            show_default="512, or half of a shorter text",
        ),
    ] = None,
    chunks: Annotated[int, typer.Option("--chunks", min=-1, help="Maximum number of chunks; -1: all.")] = -1,
    base: Annotated[
        Path | None,
        typer.Option(
            "--kl-divergence-base", metavar="FILE", show_default=False,
            help="File of log-probabilities of a base model: written, or read with --kl-divergence.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--kl-divergence", help="Compare with the base model whose file is there.")
    ] = False,
    stride: Annotated[
        int | None,
        typer.Option(
            "--ppl-stride", metavar="N", min=1, show_default=False,
            help="Chunks begin N tokens behind one another, and their last N are scored.",
        ),
    ] = None,
    hellaswag: Annotated[
        Path | None,
        typer.Option("--hellaswag", metavar="FILE", show_default=False, help="Score tasks of HellaSwag."),
    ] = None,
    winogrande: Annotated[
        Path | None,
        typer.Option("--winogrande", metavar="FILE", show_default=False, help="Score tasks of WinoGrande."),
    ] = None,
    multiple_choice: Annotated[
        Path | None,
        typer.Option(
            "--multiple-choice", metavar="FILE", show_default=False,
            help="Score tasks of ARC, MMLU, TruthfulQA.",
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks", metavar="N", min=-1, help="Number of tasks; -1: all.",
            show_default="400 of HellaSwag, else all",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file of --kl-divergence-base.")
    ] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Compute the perplexity of a text by chunks, whose second half is scored, as llama-perplexity.

    --kl-divergence-base FILE keeps what the model says to each position; of another model, --kl-divergence
    then says how far it is from that. --hellaswag, --winogrande and --multiple-choice score tasks of a file.
    """
    check_engines(engines)
    if chunks == 0:
        raise UsageError("--chunks: wanted at least 1, or -1 for all; got 0")
    model, word = model_and_word(model, word, opening)
    if word is not None and file is not None:
        raise UsageError(f"--file: wanted one text; got {word!r:.80} and {str(file)!r:.80}")
    file = file if word is None else Path(word)
    limit = None if chunks < 0 else chunks
    of_tasks = {"--hellaswag": hellaswag, "--winogrande": winogrande, "--multiple-choice": multiple_choice}
    others = {
        "--ppl-stride": stride, "--kl-divergence-base": base, "--ray": engines.ray,
        "--kl-divergence": compare and base is None,
    }  # fmt: skip
    kind, file = _tasks(of_tasks, others, file)
    if kind is None and tasks is not None:
        raise UsageError(f"--tasks: wanted {', '.join(of_tasks)} FILE beside it; got {tasks} of a text")
    if kind is not None:
        if limit is not None:
            raise UsageError(f"--chunks: wanted --tasks N beside {kind[0]}, whose tasks are no chunks")
        score_tasks(opening, model, kind[0], kind[1], tasks, json)
        return
    if compare:
        _compare(opening, model, file, n_ctx, limit, base, json)
        return
    _check_base(base, force, file)
    text = text_to_measure(file)
    with naming_text(file), Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        _check_base(base, force, *opened.executor.file.paths)
        ids, begins = ids_and_beginning(opened, text)
        ctx = chunk_of(len(ids), n_ctx, opened.n_ctx) if stride is None else n_ctx or 512
        estimate = None
        bars.report("perplexity", 0, 0)
        if stride is not None:
            steps = strided(opened, ids, ctx, stride, limit)
            ctx = strided_chunk(ctx, stride)
        elif engines.ray is not None:
            steps = spread_perplexity(spread_on_ray(opened, engines), opened, ids, ctx, limit, begins)
        elif base is not None:
            steps = write_base(opened.session(ctx), ids, ctx, base, limit, begins)
        else:
            steps = estimates(opened.session(ctx), ids, ctx, limit, begins)
        for estimate in steps:
            bars.report("perplexity", estimate.chunks, estimate.n_chunks)
        assert estimate is not None
    if json:
        write_json(
            {
                "model": str(opened.path), "file": str(file or STDIN), "perplexity": estimate.value,
                "error": estimate.error, "chunks": estimate.chunks, "n_ctx": ctx,
                "scored": estimate.count, **({} if stride is None else {"stride": stride}),
            }
        )  # fmt: skip
        return
    half = ", half of the text" if n_ctx is None and ctx == len(ids) // 2 else ""
    said = f"{estimate.chunks} chunks of {ctx}{half}: {estimate.value:.4f} +/- {estimate.error:.5f}"
    print(said, file=sys.stderr)
    print(f"{estimate.value:.4f}")


def _check_base(base: Path | None, force: bool, *read: Path | None) -> None:
    """UsageError where the file for a base cannot be written, or is another one."""
    check_target("--kl-divergence-base", base)
    if base is not None and base.exists() and not force:
        raise UsageError(
            f"--kl-divergence-base: {base} is there already; --kl-divergence compares with it, --force "
            "overwrites it"
        )
    if base is not None:
        check_not_read("--kl-divergence-base", base, *read)


def _tasks(
    of_tasks: Mapping[str, Path | None], others: Mapping[str, object], file: Path | None
) -> tuple[tuple[str, Path] | None, Path | None]:
    """The option of tasks with its file, None for none, and the text; UsageError for two kinds of scores."""
    named = [(option, path) for option, path in of_tasks.items() if path is not None]
    if file is not None and len(named) == 1 and str(named[0][1]) in _BEFORE_A_FILE:
        named, file = [(named[0][0], file)], None
    kinds = [option for option, _ in named] + [option for option, value in others.items() if value]
    if len(kinds) > 1:  # a cluster spreads the plain estimate alone
        raise UsageError(f"{kinds[0]}: wanted one kind of score; got {' and '.join(kinds)}")
    if named and file is not None:
        raise UsageError(f"{kinds[0]}: wanted tasks or a text; got {str(file)!r:.80}, too")
    return (named[0] if named else None), file


def _compare(
    opening: options.Running, model: str | None, file: Path | None, n_ctx: int | None, limit: int | None,
    path: Path | None, json: bool,
) -> None:  # fmt: skip
    """`--kl-divergence`: the text is the base's; one that is named has to be the same."""
    if path is None:
        raise UsageError("--kl-divergence: wanted --kl-divergence-base FILE, written with the base model")
    base = open_base(path)
    if n_ctx is not None and n_ctx != base.n_ctx:
        raise UsageError(f"--ctx-size: the base has chunks of {base.n_ctx}; got {n_ctx}")
    text = None if file is None else text_to_measure(file)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        ids, begins = ids_and_beginning(opened, text or "")
        if text is not None and ids[: base.ids.size] != base.ids.ravel().tolist():
            raise UsageError(f"{path}: is of another text than {file}, or of other tokens")
        n_chunks = len(base.ids) if limit is None else min(limit, len(base.ids))
        bars.report("perplexity", 0, n_chunks)
        running = []
        for done, divergence in enumerate(divergences(opened.session(base.n_ctx), base, limit, begins)):
            if json:
                running.append(divergence.running())
            bars.report("perplexity", done + 1, n_chunks)
    statistics = divergence.statistics()
    if json:
        write_json(
            {
                "model": str(opened.path), "base": str(path), "n_ctx": base.n_ctx, "scored": divergence.count,
                "statistics": {name: _numbers(figure) for name, figure in statistics.items()},
                "chunks": [
                    {"after": number + 1, **{name: _numbers(figure) for name, figure in figures.items()}}
                    for number, figures in enumerate(running)
                ],
            }
        )  # fmt: skip
        return
    for name, figure in statistics.items():
        unit = " %" if name.endswith((" p", "base)))")) else ""
        error = "" if figure.error is None else f" +/- {figure.error:.6f}"
        print(f"{name:31}{figure.value:12.6f}{error}{unit}")


def _numbers(figure: Figure) -> list[float]:
    return [figure.value] if figure.error is None else [figure.value, figure.error]
