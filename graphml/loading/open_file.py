"""Opens a model that is here: a file of any kind, or a folder of Hugging Face transformers.

Knows which reader is for which; nothing of what they read.
"""

from __future__ import annotations

from pathlib import Path

from graphml.loading import discovery
from graphml.loading.huggingface.folder import open_folder
from graphml.weights import ModelFile, open_model


def open_path(path: Path, arch_file: Path | None = None) -> ModelFile:
    """Open a file or a folder; arch_file: whose `FAMILY` reads the folder, if it has one."""
    if not path.is_dir():
        return open_model(path)
    family = None if arch_file is None else discovery.family_from_file(arch_file)
    return open_folder(path, discovery.families(), family, discovery.refused_folders())
