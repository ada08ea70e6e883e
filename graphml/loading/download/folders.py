"""Folders of complete and partial downloads in the cache folder."""

from __future__ import annotations

from pathlib import Path

from graphml import settings

PARTIAL, LOCK, SUM = ".part", ".lock", ".sum"


def models_folder() -> Path:
    """The folder of model files."""
    return settings.cache_folder() / "models"


def hub_folder(repo: str = "") -> Path:
    """The folder of the hub's files, or of one of its repositories."""
    return models_folder() / "hub" / repo


def partial_folder() -> Path:
    """The folder of partial downloads."""
    return settings.cache_folder() / "partial"


def sum_path(path: Path) -> Path:
    """The note beside a file of the hub that records its version."""
    return path.with_name(f".{path.name}{SUM}")
