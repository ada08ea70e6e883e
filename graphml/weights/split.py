"""Models split over several GGUF files: opens all parts, from any one of them.

The parts are named `model-00001-of-00003.gguf` and described by `split.no`, `split.count` and
`split.tensors.count`; the metadata of the model is in the first. Knows of GGUF only these names and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from graphml.errors import WeightsError
from graphml.weights.file_names import PartName, part_name
from graphml.weights.filemap import FileMap
from graphml.weights.gguf import read_part
from graphml.weights.metadata import Metadata, StoredValue, stored
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import Tensor

Part = tuple[FileMap, Metadata, dict[str, Tensor]]
"""A file of a split model, its metadata, and its tensors."""


def open_gguf(file: FileMap, opened: list[FileMap]) -> ModelFile:
    """Read a GGUF model from one file or, if it is part of a split one, from all parts.

    Every further file that gets mapped is appended to `opened`, so that the caller can close all on an error.
    """

    def open_part(path: Path) -> Part | None:
        if not path.is_file():
            return None
        part = FileMap(path)
        opened.append(part)
        return part, *read_part(part)

    return whole_model((file, *read_part(file)), open_part)


def whole_model(first: Part, open_part: Callable[[Path], Part | None]) -> ModelFile:
    """Join a model from one part, which may be all of it, and the others by their paths.

    open_part returns None for a missing part.
    """
    file, metadata, tensors = first
    if _split(metadata) == (0, 1):
        return ModelFile(file.path, metadata, tensors, [file])
    return _open_all(first, open_part)


def split_values(number: int, count: int, n_tensors: int) -> dict[str, StoredValue]:
    """The keys of part `number`, from 0, of `count` of a model with so many tensors."""
    return {
        "split.no": stored(number, "u16"),
        "split.count": stored(count, "u16"),
        "split.tensors.count": stored(n_tensors, "i32"),
    }


def part_paths(path: Path, number: int, count: int) -> list[Path]:
    """Return the paths of all `count` parts beside `path`, which is part `number` (from 0)."""
    named = part_name(path.name)
    if named is None or (named.number, named.count) != (number + 1, count):
        wanted = PartName("", number + 1, count).part(number + 1)
        raise WeightsError(
            f"{path}: key 'split.no': the file is part {number + 1} of {count} of a model and must be named "
            f"like model{wanted} for the other parts to be found"
        )
    return [path.with_name(named.part(index + 1)) for index in range(count)]


def _split(metadata: Metadata) -> tuple[int, int]:
    """Return the number of this part, from 0, and the count of parts."""
    count, number = metadata.integer("split.count", 1), metadata.integer("split.no", 0)
    count = count or 1  # gguf-split writes 0 for a model merged back into one file
    if not 0 <= number < count <= 99999:
        raise WeightsError(
            f"{metadata.path}: key 'split.no': {number} of {count} parts, wanted 0 to {count - 1}"
        )
    return number, count


def _open_all(first: Part, open_part: Callable[[Path], Part | None]) -> ModelFile:
    file, metadata, _ = first
    number, count = _split(metadata)
    maps: list[FileMap] = []
    first_metadata = metadata
    merged: dict[str, Tensor] = {}
    for index, path in enumerate(part_paths(file.path, number, count)):
        opened = first if index == number else open_part(path)
        if opened is None:
            raise WeightsError(f"{file.path}: part {index + 1} of {count} is missing: no file {path}")
        part, part_metadata, part_tensors = opened
        came = _split(part_metadata)
        if came != (index, count):
            raise WeightsError(
                f"{path}: key 'split.no': wanted part {index + 1} of {count}, got {came[0] + 1} of {came[1]}"
            )
        if index == 0:
            first_metadata = part_metadata
        for name in part_tensors.keys() & merged.keys():
            raise WeightsError(f"{path}: tensor {name!r} is also in another part of the model")
        maps.append(part)
        merged |= part_tensors
    total = first_metadata.integer("split.tensors.count", len(merged))
    if total != len(merged):
        raise WeightsError(
            f"{first_metadata.path}: key 'split.tensors.count': wanted {total} tensors, "
            f"the parts hold {len(merged)}"
        )
    return ModelFile(file.path, first_metadata, merged, maps)
