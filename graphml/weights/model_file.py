"""An open model file: metadata and tensors, whatever kind of file they came from.

Knows nothing of any file layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from graphml.weights.filemap import FileMap
from graphml.weights.metadata import Metadata
from graphml.weights.tensor import Tensor


class ModelFile:
    """A model file, or all parts of a split one: `path`, `metadata`, and `tensors` by name in file order.

    Closing (also by `with`) gives the map back. Arrays that look at it stay valid and keep it until they go;
    metadata that was not read before is gone. `header_only`: the data of tensors are not here.
    """

    def __init__(
        self, path: Path, metadata: Metadata, tensors: Mapping[str, Tensor], maps: Sequence[FileMap]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors: Mapping[str, Tensor] = MappingProxyType(dict(tensors))
        self.paths = tuple(one.path for one in maps)
        self.n_bytes = sum(one.n_bytes for one in maps)
        self.header_only = not all(one.is_whole for one in maps)
        self._maps = tuple(maps)

    @property
    def n_weight_bytes(self) -> int:
        """The bytes of all tensors together; `n_bytes` is that of the files, header and padding included."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> ModelFile:
        """The same file with other tensors; it takes the maps over."""
        return ModelFile(self.path, self.metadata, tensors, self._maps)

    def with_metadata(self, metadata: Metadata) -> ModelFile:
        """The same file with other metadata; it takes the maps over."""
        return ModelFile(self.path, metadata, self.tensors, self._maps)

    def check_unchanged(self) -> None:
        """WeightsError, with its name, where a file was written to or cut off since it was opened."""
        for one in self._maps:
            one.check_unchanged()

    def forget_pages(self) -> None:
        """Let the process's hold on pages that were read go; they come back when they are read again."""
        for one in self._maps:
            one.forget_pages()

    def will_need(self, large: bool = False) -> None:
        """Ask the system to read the file ahead into memory, into large pages if it can; returns at once."""
        for one in self._maps:
            one.will_need(large)

    def close(self) -> None:
        """Give the map back as soon as no array looks at it; a second call does nothing."""
        self.tensors = MappingProxyType({})
        for one in self._maps:
            one.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ModelFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"
