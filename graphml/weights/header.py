"""Opens the header of a GGUF model that is elsewhere: metadata and tensors without their data.

Reads as few bytes as it can: the first ones, and more where the header goes on. Knows nothing of where the
bytes come from.
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
"""Far above any vocabulary: what a hostile file can have us read and hold."""


@dataclass(frozen=True)
class DistantFile:
    """A file of `n_bytes` that is elsewhere; `read(start, stop)` gives those of its bytes, exactly.

    path: what it is called in errors; of a split model the file's name is the part's.
    """

    path: Path
    n_bytes: int
    read: Callable[[int, int], bytes]


def open_header(parts: Sequence[DistantFile]) -> ModelFile:
    """Open a model by the headers of all its parts, the first one first.

    The data of its tensors are not there. Raises WeightsError as `open_model` does, and where a header is
    larger than `LARGEST_HEADER`.
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
