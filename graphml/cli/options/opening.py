"""From a command's arguments to an open model: path or name, download, settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import graphml
from graphml.api.load_model import load_model
from graphml.cli.options.checks import check_opening
from graphml.cli.options.options import ModelSource, Opening
from graphml.cli.terminal.console import Bars
from graphml.errors import UsageError
from graphml.loading import fetch
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.open_executor import open_executor
from graphml.weights import ModelFile


def find(model: str | None, source: ModelSource | Opening, bars: Bars) -> Path:
    """Return the path of the model that the arguments name, downloaded if it must be; None: the default."""
    model, progress = _named(model, source), _shown(source, bars)
    if source.hf is None:
        return fetch.resolve(model, progress, source.offline)
    return fetch.fetch_hub(source.hf, progress=progress, offline=source.offline)


def open_header(model: str | None, source: ModelSource | Opening, bars: Bars) -> ModelFile:
    """Open that model for what its header says; of one of the hub no more is downloaded."""
    model, progress = _named(model, source), _shown(source, bars)
    if source.hf is None:
        return fetch.open_header(model, progress, source.offline)
    return fetch.open_hub_header(source.hf, progress=progress, offline=source.offline)


def _named(model: str | None, source: ModelSource | Opening) -> str | None:
    """The model by position or by --model; UsageError for one that is named twice."""
    names = {"MODEL": model, "--model": source.named, "-hf": source.hf}
    stated = {flag: name for flag, name in names.items() if name is not None}
    if len(stated) > 1:
        both = " and ".join(f"{flag} {name!r}" for flag, name in stated.items())
        raise UsageError(f"wanted one of MODEL, --model and -hf; got {both}")
    return source.named if model is None else model


def model_and_word(model: str | None, word: str | None, source: Opening) -> tuple[str | None, str | None]:
    """MODEL and the argument behind it: where an option names the model, the first one is the latter."""
    by_option = source.named is not None or source.hf is not None
    return (None, model) if by_option and word is None else (model, word)


def model_and_texts(
    model: str | None, words: Sequence[str] | None, source: Opening
) -> tuple[str | None, list[str]]:
    """MODEL and the texts behind it; it is the first text where an option names the model or it can be none.

    A single word is never taken for a text: it may be a model's name that is written wrongly.
    """
    by_option = source.named is not None or source.hf is not None
    can_be_none = model is not None and any(map(str.isspace, model)) and not fetch.names_model(model)
    if model is not None and (by_option or can_be_none):
        return None, [model, *(words or ())]
    return model, list(words or ())


def _shown(source: ModelSource | Opening, bars: Bars) -> fetch.Progress:
    """What shows a download; before it, UsageError for a wrong option."""
    if isinstance(source, Opening):
        check_opening(source)
    return lambda done, total: bars.report("download", done, total or 0)


def seed_of(seed: int) -> int | None:
    """Return the seed as the library has it, None for a random one."""
    return None if seed < 0 else seed


def load(path: Path, opening: Opening, bars: Bars) -> graphml.Model:
    """Open a model as the options say."""
    return load_model(path, opening, bars.report)


@contextmanager
def header(model: str | None, opening: Opening, n_batch: int, bars: Bars) -> Iterator[tuple[Path, Executor]]:
    """A model's path and what builds its graphs, as the options say; of its file the header alone is read."""
    file = open_header(model, opening, bars)
    unread = replace(opening, n_batch=n_batch, pages="map", numa="first-touch")
    with closing(open_executor(file, unread, bars.report)) as opened:
        yield opened.file.path, opened


@contextmanager
def whole(model: str | None, opening: Opening, bars: Bars) -> Iterator[tuple[Path, Executor]]:
    """The same, of a file that is here, so that its programs can run."""
    path = find(model, opening, bars)
    with closing(open_executor(path, opening, bars.report)) as opened:
        yield path, opened
