"""The assembly of kernels, kept beside the compiled kernels, which it is as stale as."""

from __future__ import annotations

from graphml_cpu import kernel_cache
from graphml_cpu.compiler import KernelRef, assembly


def listing(ref: KernelRef) -> str:
    """The assembly of a kernel at the level of this process, made once in a run."""
    file = kernel_cache.folder() / "assembly" / f"{kernel_cache.file_stem(ref)}.s"
    if file.exists():
        return file.read_text()
    text = assembly(ref)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".writing").write_text(text)
    file.with_suffix(".writing").replace(file)
    return text
