"""A batch job: requests of a file through a model, as many together as its engine takes, to files of results.

Killed at any moment, the same job goes on: no line is lost, none is asked or written twice. Knows requests,
results and a server in this process; nothing of terminals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Self

from graphml.api.model import Model
from graphml.batch_jobs.requests import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    BatchDefaults,
    BatchRequest,
    read_requests,
)
from graphml.batch_jobs.results import ResultFile, errors_file, result_id
from graphml.errors import BackendError, TemplateError, UsageError
from graphml.server.local_server import LocalServer
from graphml.server.options.server_options import ServerOptions

PARALLEL = 32
BUSY = (429, 503)
PAUSE_S = 0.2
AHEAD = 2
"""Requests that are read and prepared for each that is computed."""


@dataclass(frozen=True)
class BatchSettings:
    """How a job is run.

    parallel: requests that are computed together. n_ctx: tokens of each; None: what the model was trained
    for.
    url: the endpoint of lines that are plain text; None: chat, of a model without a template completions.
    defaults: what requests say that do not. in_order: results in the order of their requests.
    retry: ask lines again that failed.
    """

    parallel: int = PARALLEL
    n_ctx: int | None = None
    url: str | None = None
    defaults: BatchDefaults = field(default_factory=BatchDefaults)
    in_order: bool = False
    retry: bool = False


@dataclass(frozen=True)
class BatchProgress:
    """total: lines of the job; done: of them with a result; failed: of those, in the file of errors.

    kept: had their results before; tokens: read and generated in this run; seconds: since it began.
    """

    total: int
    done: int
    failed: int
    kept: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens of prompts and answers in each second of this run, with those of shared beginnings."""
        return (self.prompt_tokens + self.generated_tokens) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class BatchSummary:
    """The end of a job, and its files; errors: None where no line failed."""

    progress: BatchProgress
    output: Path
    errors: Path | None


Report = Callable[[BatchProgress], None]


class BatchEngines(Protocol):
    """What answers requests: engines of this process or of other ones."""

    @property
    def n_engines(self) -> int:
        """Engines that answer at once."""

    @property
    def is_dead(self) -> bool:
        """Whether no answers come any more."""

    async def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and the JSON that a POST is answered with."""

    def cancel(self) -> None:
        """End all requests."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


Engines = Callable[[Model, ServerOptions], BatchEngines]


class BatchJob:
    """A job over a file. UsageError for names that occur twice, and for files of another job."""

    def __init__(
        self, model: Model, requests: str | PathLike[str], output: str | PathLike[str],
        settings: BatchSettings = BatchSettings(),
        options: ServerOptions | None = None,
        engines: Engines = LocalServer,
    ) -> None:  # fmt: skip
        if settings.url not in (None, *ENDPOINTS):
            raise UsageError(f"url: wanted one of {', '.join(ENDPOINTS)}; got {settings.url!r:.80}")
        self.path, self.output, self.settings = Path(requests), Path(output), settings
        if self.output.exists() and self.path.exists() and self.output.samefile(self.path):
            raise UsageError(f"{output}: wanted another file than that of the requests")
        self._model, self._engines = model, engines
        options = options or ServerOptions()
        waiting = max(options.limits.waiting, settings.parallel * AHEAD)
        limits = replace(options.limits, waiting=waiting)
        self._options = replace(options, parallel=settings.parallel, n_ctx=settings.n_ctx, limits=limits)
        self._texts = settings.url or (CHAT if _has_template(model) else COMPLETIONS)
        self._identity = f"{model.path.name} {model.executor.file.paths[0].stat().st_size}"
        self._numbers = self._ids()

    def _requests(self) -> Iterator[BatchRequest]:
        return read_requests(self.path, self._texts, self.settings.defaults)

    def _ids(self) -> dict[str, int]:
        """The id of each line's result, and the line's number."""
        numbers: dict[str, int] = {}
        lines: dict[str, int] = {}
        for request in self._requests():
            number, name = request.number, request.custom_id
            first = number if request.problem else lines.setdefault(name, number)
            if first != number:
                raise UsageError(
                    f"{self.path}: line {number}: custom_id {name!r:.80} is that of line {first}"
                )
            numbers[result_id(request, self._identity)] = request.number
        if not numbers:
            raise UsageError(f"{self.path}: wanted requests; the file has none")
        return numbers

    def run(self, report: Report = lambda progress: None) -> BatchSummary:
        """Ask what has no result yet. report: gets the progress after each line.

        UsageError for a full disk, BackendError for an engine that has ended; results up to then are kept.
        """
        with ExitStack() as stack:
            results = stack.enter_context(ResultFile(self.output))
            failed = stack.enter_context(ResultFile(errors_file(self.output)))
            for file in (results, failed):
                self._check_same_job(file)
                stack.push(file.leave_nothing)
            if self.settings.retry:
                failed.empty()
            run = _Run(self, results, failed, report)
            if run.progress().done < len(self._numbers):
                server = stack.enter_context(self._engines(self._model, self._options))
                asyncio.run(run.all(server, self._requests()))
            if self.settings.in_order:
                results.sort(self._numbers)
            progress = run.progress()
        if not progress.failed:
            errors_file(self.output).unlink(missing_ok=True)
        return BatchSummary(progress, self.output, errors_file(self.output) if progress.failed else None)

    def _check_same_job(self, file: ResultFile) -> None:
        for name, number in file.ids.items():
            if name not in self._numbers:
                raise UsageError(
                    f"{file.path}: line {number} is a result of another job: of other requests, another "
                    "model or other settings; choose another file, or remove this one"
                )

    @property
    def total(self) -> int:
        """Lines of the job."""
        return len(self._numbers)

    def id_of(self, request: BatchRequest) -> str:
        """The id of a request's result."""
        return result_id(request, self._identity)


def _has_template(model: Model) -> bool:
    try:
        return model.tokenizer is not None and model.templates["default"] is not None
    except TemplateError:
        return False


class _Run:
    """What has come of a job so far."""

    def __init__(self, job: BatchJob, results: ResultFile, failed: ResultFile, report: Report) -> None:
        self._job, self._results, self._failed, self._report = job, results, failed, report
        self._kept = len(results.ids) + len(failed.ids)
        self._begin = time.monotonic()
        self._prompt = self._generated = self._cached = 0

    def progress(self) -> BatchProgress:
        """How far it is."""
        failed = len(self._failed.ids)
        n_done = len(self._results.ids) + failed
        counts = self._prompt, self._generated, self._cached
        return BatchProgress(
            self._job.total, n_done, failed, self._kept, *counts, time.monotonic() - self._begin
        )

    async def all(self, server: BatchEngines, requests: Iterator[BatchRequest]) -> None:
        """Ask all requests without a result."""
        waiting = (
            (name, request) for request in requests
            if (name := self._job.id_of(request)) not in self._results.ids and name not in self._failed.ids
        )  # fmt: skip
        running: set[asyncio.Task[None]] = set()
        ahead = self._job.settings.parallel * AHEAD * server.n_engines
        try:
            while True:
                for name, request in islice(waiting, ahead - len(running)):
                    running.add(asyncio.ensure_future(self._one(server, name, request)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors = [error for task in done if (error := task.exception()) is not None]
                if errors:
                    raise errors[0]
                if server.is_dead:
                    raise BackendError("batch: the engine has ended; the same command goes on")
        finally:
            server.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, server: BatchEngines, name: str, request: BatchRequest) -> None:
        result: dict[str, Any] = {"id": name, "custom_id": request.custom_id}
        if request.problem:
            error = {"code": "invalid_line", "message": request.problem}
            self._failed.add({**result, "line": request.number, "response": None, "error": error})
        else:
            status, body = await server.answer(request.url, request.body)
            while status in BUSY and not server.is_dead:  # what others hold is given back
                await asyncio.sleep(PAUSE_S)
                status, body = await server.answer(request.url, request.body)
            if server.is_dead:
                return
            response = {"status_code": status, "request_id": name, "body": body}
            if status == 200:
                self._count(body)
                self._results.add({**result, "response": response, "error": None})
            else:
                error = {"code": str(status), "message": _message(body)}
                self._failed.add({**result, "line": request.number, "response": response, "error": error})
        self._report(self.progress())

    def _count(self, body: Mapping[str, Any]) -> None:
        usage = body.get("usage") or {}
        self._prompt += usage.get("prompt_tokens", usage.get("input_tokens", 0))
        self._generated += usage.get("completion_tokens", usage.get("output_tokens", 0))
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        self._cached += details.get("cached_tokens", 0)


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, Mapping) else None
    return str(error.get("message", error) if isinstance(error, Mapping) else body)


def run(
    model: Model, requests: str | PathLike[str], output: str | PathLike[str],
    settings: BatchSettings = BatchSettings(),
    report: Report = lambda progress: None,
    engines: Engines = LocalServer,
) -> BatchSummary:  # fmt: skip
    """Answer the requests of a file with a model: results to `output`, lines that failed beside it.

    Called again after a kill it goes on: lines with a result are not asked again. requests: OpenAI's batch
    lines, JSON rows with messages, a prompt or an input, lines of text, parquet or arrow tables. engines:
    what answers: one of this process, or `graphml.cluster.engines_on_ray(...)`. Errors as of `BatchJob`.
    """
    return BatchJob(model, requests, output, settings, engines=engines).run(report)
