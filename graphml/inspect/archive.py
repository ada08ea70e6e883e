"""Named arrays in an .npz file, read with care: what is no such file is one clear error."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.ir.op import Array

HEADER = "header"
LARGEST_HEADER_BYTES = 64 << 20


def write(path: Path, header: Any, arrays: dict[str, Array]) -> None:
    """Write arrays and a header that JSON can hold."""
    held = {**arrays, HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    with path.open("wb") as file:
        np.savez_compressed(file, **held)  # type: ignore[arg-type]  # its stub lists the keywords


def read(path: Path, what: str) -> tuple[Any, dict[str, Array]]:
    """The header and the arrays; a UsageError, which says `what` was wanted, for another file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            if held[HEADER].nbytes > LARGEST_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(held[HEADER].tobytes())
            return header, {name: held[name] for name in held.files if name != HEADER}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: cannot be read as {what}: {error}") from None
