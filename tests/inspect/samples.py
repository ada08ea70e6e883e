"""Executors of the architectures' sample models, opened once and shared by the tests of inspection."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES

FOLDER = tempfile.TemporaryDirectory(prefix="graphml-samples-")


def model_path(model: str, form: str | None = None) -> Path:
    """The GGUF file of a sample model; written once, for a file in use must not change."""
    path = Path(FOLDER.name) / f"{model}-{form}.gguf"
    return path if path.exists() else write_model(path, *MODELS[model], form)


def opened(model: str, backend: str = "reference", form: str | None = None) -> Executor:
    """The sample model, opened anew."""
    return open_executor(model_path(model, form), LoadOptions(backend, threads=1, n_batch=24))


@functools.cache
def executor(model: str, backend: str = "reference", form: str | None = None) -> Executor:
    """The sample model, open; it stays so until the process ends."""
    return opened(model, backend, form)


@functools.cache
def stories(backend: str = "reference") -> Executor:
    """The stories checkpoint, open."""
    return open_executor(STORIES, LoadOptions(backend, threads=1))
