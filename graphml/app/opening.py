"""From a command's arguments to an open model: path or name, download, settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import graphml
from graphml.app.console import Bars
from graphml.app.options import Compiling, Running, Sampling
from graphml.engine import fetch
from graphml.engine.compile import CompileOptions
from graphml.engine.executor import Executor
from graphml.engine.loading import open_executor
from graphml.errors import UsageError


def find(model: str | None, hub: str | None, bars: Bars) -> Path:
    """Return the path of the model that the arguments name, downloaded if it must be; None: the default."""

    def progress(done: int, total: int | None) -> None:
        bars.report("download", done, total or 0)

    if hub is None:
        return fetch.resolve(model, progress)
    if model is not None:
        raise UsageError(f"wanted either MODEL or -hf, got both: {model!r} and {hub!r}")
    return fetch.fetch_hub(hub, progress=progress)


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
    return graphml.load(
        path, given.backend, given.threads, kv=given.kv, quant=given.quant, n_batch=given.batch,
        arch=given.arch, pre=given.pre, template=template, fuse=given.fuse, place=given.place,
        strict=given.strict, progress=bars.report, gpu_layers=given.gpu_layers,
    )  # fmt: skip


@contextmanager
def header(
    model: str | None, given: Compiling, n_batch: int, bars: Bars, tuned: bool | None = None
) -> Iterator[tuple[Path, Executor]]:
    """A model's path and what compiles it, as the options say; of its file the header alone is read."""
    path = find(model, given.hf, bars)
    chosen = CompileOptions(given.fuse, place=given.place, strict=given.strict)
    executor = open_executor(
        path, given.backend, given.threads, given.arch, given.kv, n_batch, bars.report, chosen, tuned=tuned,
        gpu_layers=given.gpu_layers,
    )  # fmt: skip
    try:
        yield path, executor
    finally:
        executor.close()
