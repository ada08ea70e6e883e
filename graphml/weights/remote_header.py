"""Opens the header of a remote GGUF model: metadata and tensors without their data.

Reads as few bytes as possible: the first ones, and more if the header is longer. Knows nothing of the source
of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphml.errors import WeightsError
from graphml.weights.cursor import HeaderEndsError
from graphml.weights.filemap import FileMap
from graphml.weights.gguf import read_part
from graphml.weights.model_file import ModelFile
from graphml.weights.split import Part, whole_model

FIRST_BYTES = 1 << 20
LARGEST_HEADER = 1 << 28
"""Far above any vocabulary: the limit of bytes that a hostile file can make us read."""


@dataclass(frozen=True)
class DistantFile:
    """A remote file of `n_bytes`; `read(start, stop)` returns exactly these bytes.

    path: its name in errors; for a split model the file name is that of the part.
    """

    path: Path
    n_bytes: int
    read: Callable[[int, int], bytes]


def open_header(parts: Sequence[DistantFile]) -> ModelFile:
    """Open a model by the headers of all its parts, the first one first.

    Its tensors have no data. Raises WeightsError like `open_model`, and for a header larger than
    `LARGEST_HEADER`.
    """
    by_path = {part.path: part for part in parts}

    def open_part(path: Path) -> Part | None:
        return _read_part(by_path[path]) if path in by_path else None

    return whole_model(_read_part(parts[0]), open_part)


def _read_part(file: DistantFile) -> Part:
    held, wanted = b"", FIRST_BYTES
    while True:
        stop = min(max(wanted, 2 * len(held)), file.n_bytes)
        if stop > LARGEST_HEADER:
            raise WeightsError(
                f"{file.path}: the header goes on after {len(held)} bytes; {LARGEST_HEADER} are allowed"
            )
        held += file.read(len(held), stop)
        header = FileMap.of_header(file.path, held, file.n_bytes)
        try:
            return header, *read_part(header)
        except HeaderEndsError as error:
            wanted = error.n_bytes
