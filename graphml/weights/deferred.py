"""A tensor whose bytes are computed from others when they are first read: permuted, transposed, converted.

Knows when bytes are computed; nothing of what they mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from graphml.backend import Progress, no_progress
from graphml.errors import WeightsError
from graphml.system.read_files import guarded
from graphml.weights.filemap import Bytes
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import Tensor


class DeferredTensor(Tensor):
    """A tensor in memory of its own; `data` is computed once, by the first thread that reads it."""

    @classmethod
    def of(
        cls, name: str, dtype: str, shape: tuple[int, ...], compute: Callable[[], Bytes]
    ) -> DeferredTensor:
        """The tensor of a name; compute: its bytes, uint8 [n_bytes]."""
        tensor = object.__new__(cls)
        vars(tensor).update(
            name=name, dtype=dtype, shape=shape, mapped=False, _compute=compute, _own=threading.Lock()
        )
        return tensor

    def __getattr__(self, name: str) -> Any:
        """`data`, which the instance lacks until it is computed."""
        own = vars(self)
        if name != "data" or "_own" not in own:
            other: Any = super()
            return other.__getattr__(name)
        with own["_own"]:
            if "data" not in own:
                data = np.ascontiguousarray(own["_compute"]()).reshape(-1).view(np.uint8)
                data.flags.writeable = False
                own["data"] = data
                own["_compute"] = None  # which holds what it was computed from
        content: Bytes = own["data"]
        return content

    @property
    def is_computed(self) -> bool:
        """Whether the bytes are there."""
        return "data" in vars(self)


class PassingTensor(DeferredTensor):
    """A tensor whose bytes are computed for one use, and forgotten behind it."""

    @classmethod
    def of(cls, name: str, dtype: str, shape: tuple[int, ...], compute: Callable[[], Bytes]) -> PassingTensor:
        """As of `DeferredTensor`."""
        tensor = super().of(name, dtype, shape, compute)
        assert isinstance(tensor, PassingTensor)
        vars(tensor)["_again"] = compute
        return tensor

    def forget(self) -> None:
        """Drop the bytes; who reads `data` again computes them again."""
        own = vars(self)
        with own["_own"]:
            own.pop("data", None)
            own["_compute"] = own["_again"]


def computed(file: ModelFile, threads: int = 1, progress: Progress = no_progress) -> ModelFile:
    """The file, with the bytes of all deferred tensors computed by several threads.

    progress: called as progress("converting", done, total) in bytes. WeightsError for one whose numbers do
    not fit the metadata, or overflow.
    """
    todo = [
        tensor
        for tensor in file.tensors.values()
        if isinstance(tensor, DeferredTensor) and not tensor.is_computed
    ]
    if not todo:
        return file
    total, done = sum(tensor.n_bytes for tensor in todo), 0

    def data_of(tensor: DeferredTensor) -> Bytes:
        with guarded(file.path, WeightsError, f"tensor {tensor.name!r}"):
            return tensor.data

    progress("converting", 0, total)
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for data in pool.map(data_of, todo):
            done += data.nbytes
            progress("converting", done, total)
    file.forget_pages()  # what was converted would be in memory twice
    return file
