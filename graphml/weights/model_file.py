"""An open model file: metadata, tensors, and a fingerprint of them, for every kind of file.

Knows nothing of any file layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from graphml.system.closing import Closing
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import Metadata
from graphml.weights.tensor import Tensor
from graphml.weights.tensor_table import TensorTable


class ModelFile(Closing):
    """A model file, or all parts of a split one: `path`, `metadata`, and `tensors` by name in file order.

    Closing (also by `with`) releases the map. Arrays that use it stay valid and keep it until they are freed;
    metadata that was not read before is lost. `header_only`: the tensors have no data.
    """

    def __init__(
        self, path: Path, metadata: Metadata, tensors: Mapping[str, Tensor], maps: Sequence[FileMap]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = TensorTable(tensors)
        self.paths = tuple(file.path for file in maps)
        self.n_bytes = sum(file.n_bytes for file in maps)
        self.header_only = not all(file.is_whole for file in maps)
        self._maps = tuple(maps)

    @property
    def n_weight_bytes(self) -> int:
        """The bytes of all tensors together; `n_bytes` is that of the files, header and padding included."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    @cached_property
    def fingerprint(self) -> str:
        """What distinguishes this model from others; see `fingerprint_of`."""
        self.check_unchanged()
        return fingerprint_of(self.metadata, self.tensors)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> ModelFile:
        """The same file with other tensors; it becomes the owner of the maps."""
        return ModelFile(self.path, self.metadata, tensors, self._maps)

    def with_metadata(self, metadata: Metadata) -> ModelFile:
        """The same file with other metadata; it becomes the owner of the maps."""
        return ModelFile(self.path, metadata, self.tensors, self._maps)

    def check_unchanged(self) -> None:
        """Raise a WeightsError with its name if a file was written to or truncated since it was opened."""
        for file in self._maps:
            file.check_unchanged()

    def forget_pages(self) -> None:
        """Drop the process's pages of the file; they are read again on access."""
        for file in self._maps:
            file.forget_pages()

    def will_need(self, large: bool = False) -> None:
        """Ask the system to read the file ahead into memory, into large pages if it can; returns at once."""
        for file in self._maps:
            file.will_need(large)

    def close(self) -> None:
        """Release the map as soon as no array uses it; a second call does nothing."""
        self.tensors = TensorTable({})
        for file in self._maps:
            file.close()

    def __repr__(self) -> str:
        return f"ModelFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"


FIRST_ELEMENTS = 256  # of each array of the metadata, beside its length
SAMPLE_BYTES = 256
SAMPLES = 4  # of each tensor, evenly spread, the first and the last bytes among them


def fingerprint_of(metadata: Metadata, tensors: Mapping[str, Tensor]) -> str:
    """Hexadecimal SHA-256 over metadata, names, types and shapes of all tensors, and samples of their bytes.

    Two models that differ only in bytes between the samples have the same one. Requantised tensors, and
    metadata that are overridden, count as they are in memory.
    """
    digest = hashlib.sha256()
    for key in sorted(metadata):
        digest.update(repr((key, *metadata.beginning(key, FIRST_ELEMENTS))).encode())
    for name, tensor in tensors.items():
        digest.update(repr((name, tensor.dtype, tensor.shape, tensor.n_bytes)).encode())
        last = max(0, tensor.data.nbytes - SAMPLE_BYTES)
        for at in sorted({last * i // (SAMPLES - 1) for i in range(SAMPLES)}):
            digest.update(tensor.data[at : at + SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
