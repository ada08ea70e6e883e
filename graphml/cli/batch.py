"""`graphml batch`: a file of requests to a file of results, which goes on where it was killed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.opening import find, load, model_and_word
from graphml.cli.options.spread import check_engines
from graphml.cli.options.typer_options import grouped, sources_by_field
from graphml.cli.terminal.console import Bars, own_output, say, write_json
from graphml.cluster.cluster_options import EnginesOptions, importing_ray
from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.sampling.chain.sampler import sampler_of
from graphml.sampling.structured.params_structure import matcher_of

if TYPE_CHECKING:
    from graphml.batch_jobs import BatchProgress, BatchSummary
    from graphml.batch_jobs.job import Engines

ENDINGS = (".jsonl", ".ndjson", ".txt", ".parquet", ".arrow")


@grouped
def batch(
    context: typer.Context,
    opening: options.Talking,
    params: SamplingParams,
    cluster: EnginesOptions,
    model: options.Model = None,
    requests: Annotated[
        str | None,
        typer.Argument(metavar="REQUESTS", show_default=False,
                       help="Requests: OpenAI's batch lines, JSON rows with messages, prompt or input, lines "
                       "of text, a parquet or arrow table or a folder of them."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="RESULTS.jsonl", show_default=False,
                     help="Output file. Lines that fail go to RESULTS.errors.jsonl."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", "-np", min=1, help="Requests that are computed together.")
    ] = 32,
    ctx: options.Context = None,
    max_tokens: options.MaxTokens = -1,
    seed: options.Seed = -1,
    url: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", show_default=False,
                     help="Endpoint of plain text: /v1/chat/completions (default where the model has a "
                     "template), /v1/completions, /v1/embeddings or /v1/responses."),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option("--body", metavar="JSON", show_default=False,
                     help="Fields of every request that does not have them."),
    ] = None,
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Sort the results by their requests at the end.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Ask lines again that failed before.")] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Answer the requests of a file, as many together as fit; the same command goes on after a kill."""
    model, requests = model_and_word(model, requests, opening)
    if requests is None and model is not None and (Path(model).suffix in ENDINGS or Path(model).is_dir()):
        model, requests = None, model
    if requests is None or output is None:
        missing = "REQUESTS: wanted a file" if requests is None else "--output: wanted a file for the results"
        raise UsageError(f"{missing}: graphml batch MODEL REQUESTS.jsonl -o RESULTS.jsonl")
    if not Path(requests).exists():
        raise UsageError(f"REQUESTS: {requests}: there is no such file")
    check_target("--output", output)
    try:
        from graphml.batch_jobs import BatchDefaults, BatchJob, BatchSettings
        from graphml.server.options.server_options import ServerOptions
        from graphml.server.requests.request_fields import ChatCompletion
    except ModuleNotFoundError as error:
        raise UsageError(f"batch: {error.name} is missing; pip install '.[server]' in a clone") from None
    asked = _asked(sources_by_field(context, SamplingParams), params, ChatCompletion.__struct_fields__)
    asked |= {} if seed < 0 else {"seed": seed}
    defaults = BatchDefaults(_fields(body), None if max_tokens < 0 else max_tokens, asked)
    settings = BatchSettings(parallel, ctx, url, defaults, in_order, retry)
    answering = _engines(cluster)
    # Engines on other machines read the weights there.
    here = opening if cluster.ray is None else replace(opening, pages="map", numa="first-touch")
    with Bars() as bars, load(find(model, opening, bars), here, bars) as opened:
        opened.opened_by = opening
        # What is wrong in every request is told once.
        matcher_of(params, opened.tokenizer)
        sampler_of(params).prepared(opened.tokenizer)
        shown = _LinesDone(bars)
        # Answers name the model as requests do, where that is how it was named here.
        server = ServerOptions(short_name=model or opening.named or "")
        job = BatchJob(opened, requests, output, settings, server, answering)
        try:
            with own_output(alone=cluster.ray is not None):
                summary = job.run(shown.line)
        except KeyboardInterrupt:
            bars.close()
            say(f"graphml: {shown.count} of {job.total} lines have results; the same command goes on")
            raise
    if json:
        errors = None if summary.errors is None else str(summary.errors)
        write_json({"output": str(output), "errors": errors, **asdict(summary.progress)})
    else:
        _say_what_came(summary)
    if summary.errors is not None:
        sys.exit(1)


def _engines(cluster: EnginesOptions) -> Engines:
    """What answers: an engine of this process, or those of a cluster."""
    check_engines(cluster)
    if cluster.ray is None:
        from graphml.server.local_server import LocalServer

        return LocalServer
    with importing_ray():
        from graphml.cluster.ray_engines import engines_on_ray

        return engines_on_ray(cluster)


def _say_what_came(summary: BatchSummary) -> None:
    progress = summary.progress
    kept = f", {progress.kept} of them before" if progress.kept else ""
    say(
        f"graphml: {progress.done} lines{kept}; {progress.prompt_tokens} tokens read "
        f"({progress.cached_tokens} of them shared), {progress.generated_tokens} generated in "
        f"{progress.seconds:.1f} s"
    )
    if summary.errors is not None:
        say(f"graphml: {progress.failed} lines failed: {summary.errors}; --retry asks them again")


def _asked(flags: Mapping[str, str], params: SamplingParams, fields: Sequence[str]) -> dict[str, Any]:
    """The settings of sampling that are stated; UsageError for one that requests cannot have."""
    for name, flag in flags.items():
        if name not in fields:
            raise UsageError(f"{flag}: requests of a server have no such field")
    return {name: getattr(params, name) for name in flags}


def _fields(text: str | None) -> dict[str, Any]:
    try:
        fields = {} if text is None else loads(text)
    except ValueError as error:
        raise UsageError(f"--body: no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"--body: wanted an object; got {text!r:.80}")
    return fields


class _LinesDone:
    """A bar on stderr with lines, tokens a second and lines that failed."""

    def __init__(self, bars: Bars) -> None:
        self._bars, self.count = bars, 0

    def line(self, progress: BatchProgress) -> None:
        self.count = progress.done
        failed = f", {progress.failed} failed" if progress.failed else ""
        self._bars.notes["batch"] = f", {progress.tokens_per_second:.0f} t/s{failed}"
        self._bars.report("batch", progress.done, progress.total)
