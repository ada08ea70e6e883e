"""Makes the PyTorch module of `FILE.py:factory`, a function without arguments. The file is run.

Knows nothing of graphml; runs with any Python that has what the file imports.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from peer_talk import RefusedError


def made_module(text: str) -> Any:
    """What the factory returns; the file may import what lies beside it."""
    path, _, factory = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("graphml_imported", path)
    if not path or spec is None or spec.loader is None:
        raise RefusedError(f"wanted module:FILE.py:factory; got module:{text}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
        return getattr(module, factory)()
    except Exception as error:
        raise RefusedError(
            f"{path}: {factory}: {type(error).__name__}: {error}", "ArchitectureError"
        ) from None
