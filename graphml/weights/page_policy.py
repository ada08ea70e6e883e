"""Page policy of a model's weights: in the map, with or without advice to the system, or copied.

Knows files and pages; nothing of the use of weights.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from graphml import settings
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.system import pages
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import Tensor

PAGES, NUMA = settings.pages.kind.words, settings.numa.kind.words


@dataclass(frozen=True)
class PagePolicy:
    """The policy for weights in memory.

    pages: "map": they stay in the map and are read when they are touched. "ahead": the same, and the system
    is asked to read the whole file ahead (madvise WILLNEED). "huge": the same, in large pages, for a file
    that was written since the system started: its pages are dropped and read again. "copy": copied into
    large pages of the process's own.
    numa: "first-touch": a page is on the node of the thread that touches it first; "interleave": pages
    that are read ahead or copied are on all nodes in turn. Raises `UsageError` for other words.
    """

    pages: str = settings.pages.default
    numa: str = settings.numa.default

    def __post_init__(self) -> None:
        for name, value, known in (("pages", self.pages, PAGES), ("numa", self.numa, NUMA)):
            if value not in known:
                raise UsageError(f"{name}: wanted one of {', '.join(known)}; got {value!r}")

    def placed(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, memory is placed by `numa` when it is first touched."""
        return pages.interleaved() if self.numa == "interleave" else contextlib.nullcontext()


def chosen(pages: str | None, numa: str | None) -> PagePolicy:
    """The call's values, else the environment's, else the defaults."""
    return PagePolicy(pages or settings.pages(), numa or settings.numa())


def settled(
    file: ModelFile, page_policy: PagePolicy, threads: int = 1, progress: Progress = no_progress
) -> ModelFile:
    """The file with its weights placed by `page_policy`. Owns the file, like the result of `requantised`.

    progress: called as progress("copying", done, total) in bytes.
    """
    if page_policy.pages == "map":
        return file
    if page_policy.pages != "copy":
        file.will_need(large=page_policy.pages == "huge")
        return file
    total = sum(tensor.n_bytes for tensor in file.tensors.values() if tensor.mapped)
    done, since = 0, 0
    tensors: dict[str, Tensor] = {}
    progress("copying", 0, total)
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        mapped = [tensor for tensor in file.tensors.values() if tensor.mapped]
        try:
            for tensor, copy in zip(mapped, pool.map(_copied, mapped), strict=True):
                tensors[tensor.name] = copy
                done, since = done + copy.n_bytes, since + copy.n_bytes
                if since > _FORGET_BYTES:  # otherwise the file would be in the process's memory twice
                    file.forget_pages()
                    since = 0
                progress("copying", done, total)
        except MemoryError as error:
            what = f"{file.path}: a copy of {total:,} bytes of weights"
            raise pages.out_of_memory(what, error, "give pages='map', which needs none") from None
    file.forget_pages()
    return file.with_tensors({**file.tensors, **tensors})


_FORGET_BYTES = 32 << 20


def _copied(tensor: Tensor) -> Tensor:
    data = pages.fresh(tensor.n_bytes, large=True)
    data[:] = tensor.data
    data.flags.writeable = False
    return replace(tensor, data=data, mapped=False)
