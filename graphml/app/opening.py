"""From a command's arguments to an open model: path or name, download, settings."""

from __future__ import annotations

from pathlib import Path

import graphml
from graphml.app.console import Bars
from graphml.engine import fetch
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


def sampling(
    temp: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    repeat_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_last_n: int = 64,
    dynatemp_range: float = 0.0,
    dynatemp_exp: float = 1.0,
    stop: list[str] | None = None,
) -> graphml.SamplingParams:
    """Return the sampling parameters that the options name."""
    return graphml.SamplingParams(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        penalty_last_n=repeat_last_n,
        dynatemp_range=dynatemp_range,
        dynatemp_exponent=dynatemp_exp,
        stop=tuple(stop or ()),
    )
