"""Where downloads are in the cache folder: whole ones, and those that are not whole yet."""

from __future__ import annotations

from pathlib import Path

from graphml import settings

PARTIAL, LOCK, SUM = ".part", ".lock", ".sum"


def models_folder() -> Path:
    """Where model files are kept."""
    return settings.cache_folder() / "models"


def hub_folder(repo: str = "") -> Path:
    """Where those of the hub are, or those of one of its repositories."""
    return models_folder() / "hub" / repo


def partial_folder() -> Path:
    """Where files are while they are not whole."""
    return settings.cache_folder() / "partial"


def sum_path(path: Path) -> Path:
    """The note beside a file of the hub, of which version it is."""
    return path.with_name(f".{path.name}{SUM}")
