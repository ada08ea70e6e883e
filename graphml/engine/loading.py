"""Opens a model: file, architecture, backend and executor put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphml.backend import Progress, no_progress
from graphml.engine import discovery
from graphml.engine.architecture import Architecture, Keys
from graphml.engine.executor import Executor
from graphml.errors import ArchitectureError, BackendError, WeightsError
from graphml.weights import ModelFile, open_model


def read_architecture(file: ModelFile, arch_file: Path | None = None) -> tuple[Architecture, Any]:
    """The file's architecture (or the one that a Python file defines) and its configuration."""
    name = file.metadata.text("general.architecture")
    architecture = discovery.architecture_from_file(arch_file) if arch_file else discovery.architecture(name)
    try:
        return architecture, architecture.read(Keys(file.metadata, name))
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        raise WeightsError(
            f"{file.path}: the metadata of architecture {name!r} make no sense: {error}"
        ) from None


def open_executor(
    path: Path,
    backend: str = "cpu",
    threads: int | None = None,
    arch_file: Path | None = None,
    cache_dtype: str = "f16",
    n_batch: int = 512,
    progress: Progress = no_progress,
) -> Executor:
    """Open a model file on a backend. Nothing is compiled before it is needed."""
    chosen = discovery.backend(backend)
    reason = chosen.unavailable()
    if reason is not None:
        raise BackendError(f"backend {backend!r} cannot be used here: {reason}")
    file = open_model(path)
    try:
        architecture, config = read_architecture(file, arch_file)
        return Executor(
            file, architecture, config, chosen, chosen.open(threads), n_batch, cache_dtype, progress
        )
    except ArchitectureError as error:
        file.close()
        raise ArchitectureError(f"{path}: {error}") from None
