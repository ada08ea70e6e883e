"""From a command's arguments to an open model: path or name, download, settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import graphml
from graphml.cli.checks import check_compiling, check_file
from graphml.cli.console import Bars
from graphml.cli.options import Compiling, Finding, Running, Sampling
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.loading import fetch
from graphml.runtime.executor import Executor
from graphml.runtime.open_executor import open_executor
from graphml.weights import ModelFile
from graphml.weights.page_policy import Residence


def find(model: str | None, given: Finding, bars: Bars) -> Path:
    """Return the path of the model that the arguments name, downloaded if it must be; None: the default."""
    progress = _shown(model, given, bars)
    if given.hf is None:
        return fetch.resolve(model, progress, given.offline or None)
    return fetch.fetch_hub(given.hf, progress=progress, offline=given.offline or None)


def open_header(model: str | None, given: Finding, bars: Bars) -> ModelFile:
    """Open that model for what its header says; of one of the hub no more is downloaded."""
    progress = _shown(model, given, bars)
    if given.hf is None:
        return fetch.open_header(model, progress, given.offline or None)
    return fetch.open_hub_header(given.hf, progress=progress, offline=given.offline or None)


def _shown(model: str | None, given: Finding, bars: Bars) -> fetch.Progress:
    """What shows a download; before it, UsageError for a model that is named twice, or a wrong option."""
    if isinstance(given, Compiling):
        check_compiling(given)
    if model is not None and given.hf is not None:
        raise UsageError(f"wanted either MODEL or -hf, got both: {model!r} and {given.hf!r}")
    return lambda done, total: bars.report("download", done, total or 0)


def seed_of(seed: int) -> int | None:
    """Return the seed as the library has it: None draws one."""
    return None if seed < 0 else seed


def sampling(given: Sampling) -> graphml.SamplingParams:
    """Return the sampling parameters that the options name."""
    return graphml.SamplingParams(
        temperature=given.temp,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        typical_p=given.typical_p,
        repeat_penalty=given.repeat_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        penalty_last_n=given.repeat_last_n,
        dynatemp_range=given.dynatemp_range,
        dynatemp_exponent=given.dynatemp_exp,
        stop=tuple(given.stop or ()),
    )


def load(path: Path, given: Running, bars: Bars, template: Path | None = None) -> graphml.Model:
    """Open a model as the options say."""
    check_file("--template", template)
    return graphml.load(
        path, given.backend, given.threads, kv=given.kv, quant=given.quant, n_batch=given.batch,
        arch=given.arch, pre=given.pre, template=template, fuse=given.fuse, place=given.place,
        strict=given.strict, progress=bars.report, gpu_layers=given.gpu_layers,
    )  # fmt: skip


@contextmanager
def header(model: str | None, given: Compiling, n_batch: int, bars: Bars) -> Iterator[tuple[Path, Executor]]:
    """A model's path and what builds its graphs, as the options say; of its file the header alone is read."""
    with _executor(
        open_header(model, given, bars), given, n_batch, bars, residence=Residence("map")
    ) as opened:
        yield opened.file.path, opened


@contextmanager
def whole(
    model: str | None, given: Compiling, n_batch: int, bars: Bars, tuned: bool | None = None
) -> Iterator[tuple[Path, Executor]]:
    """The same, of a file that is here, so that its programs can run."""
    path = find(model, given, bars)
    with _executor(path, given, n_batch, bars, tuned=tuned) as opened:
        yield path, opened


@contextmanager
def _executor(
    source: Path | ModelFile, given: Compiling, n_batch: int, bars: Bars, residence: Residence | None = None,
    tuned: bool | None = None,
) -> Iterator[Executor]:  # fmt: skip
    chosen = CompileOptions(given.fuse, place=given.place, strict=given.strict)
    executor = open_executor(
        source, given.backend, given.threads, given.arch, given.kv, n_batch, bars.report, chosen,
        residence=residence, tuned=tuned, gpu_layers=given.gpu_layers,
    )  # fmt: skip
    try:
        yield executor
    finally:
        executor.close()
