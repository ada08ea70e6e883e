"""Memory of the machine: how much it has, fresh pages, large ones, their nodes, and those of files.

Knows the operating system; knows nothing of weights, caches or graphs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphml.errors import BackendError, UsageError

# Linux's numbers of the calls set_mempolicy and get_mempolicy, and of the policy.
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236), "riscv64": (237, 236)}
_INTERLEAVE = 3
_MOST_NODES = 1024
_NODES = Path("/sys/devices/system/node/online")
_MEMORY, _STATUS = Path("/proc/meminfo"), Path("/proc/self/status")


_MMAP_THRESHOLD = -3  # glibc's number of the option
LARGE_BYTES = 2 << 20


def give_back_memory() -> None:
    """Collect garbage, and return what the allocator keeps free to the system, where it can be asked to."""
    gc.collect()
    give_back_free_memory()


def give_back_free_memory() -> None:
    """The same without a collection, which holds the interpreter's lock."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)


def keep_large_blocks_apart() -> None:
    """Have blocks of 1 MB or more of malloc returned to the system as soon as they are freed (glibc alone).

    Else a large block that was freed has it keep even larger ones for later.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


def fresh(n_bytes: int, large: bool, small_head: int = 0) -> NDArray[np.uint8]:
    """uint8 zeros [n_bytes] on pages of their own; what is never touched takes no memory.

    large: ask for pages of 2 MB (madvise HUGEPAGE), where the system has them: for what will be used as a
    whole. The pages are the process's own: of Python's default, shared ones, none would be large.
    small_head: bytes at the beginning, whole small pages of at most one large one, which stay on small pages:
    arrays that are filled beside each other would else want a large page each at one time. The end, less than
    a large page, stays on small ones then, too, so that nothing behind it takes memory.
    Raises MemoryError where the system refuses; a caller knows what for, and says so (`out_of_memory`).
    """
    size = max(n_bytes, 1) + (2 * LARGE_BYTES if small_head else 0)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    try:
        pages = mmap.mmap(-1, size, **private)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MemoryError(f"the system refuses {n_bytes:,} bytes ({reason})") from None
    memory = np.frombuffer(pages, np.uint8)
    boundary = -memory.ctypes.data % LARGE_BYTES + LARGE_BYTES if small_head else 0
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            if not small_head:
                pages.madvise(mmap.MADV_HUGEPAGE)
            elif n_whole := max(0, n_bytes - small_head) // LARGE_BYTES:
                pages.madvise(mmap.MADV_HUGEPAGE, boundary, n_whole * LARGE_BYTES)
    return memory[boundary - small_head :][:n_bytes]


def main_memory() -> int | None:
    """Bytes of the machine's main memory; None where the system does not report it."""
    if sys.platform == "win32":
        return _windows_memory()[0] or None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def free_memory() -> int:
    """Bytes to be had without swapping: what Linux and Windows call available, else a quarter of all."""
    if sys.platform == "win32" and (available := _windows_memory()[1]):
        return available
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return (main_memory() or 4 << 30) // 4


def _windows_memory() -> tuple[int, int]:
    """Bytes of main memory, in all and available, of MEMORYSTATUSEX; zeros where Windows refuses."""
    status = (ctypes.c_uint64 * 8)(64)  # its first four bytes are its size
    ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return status[1], status[2]


def own_memory() -> dict[str, int]:
    """Bytes of this process by Linux's names: VmRSS is what is in RAM, VmHWM the most; empty elsewhere."""
    with contextlib.suppress(OSError, ValueError):
        lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
        fields = (line.split() for line in lines if line.endswith(" kB"))
        return {name.rstrip(":"): int(count) << 10 for name, count, _ in fields}
    return {}


def out_of_memory(what: str, error: MemoryError, instead: str) -> BackendError:
    """What to raise where memory is refused: for what, how much, and what the user can change."""
    return BackendError(f"{what}: not enough memory: {str(error) or 'there is none left'}; {instead}")


def let_go(file: int) -> None:
    """Have an open file, by its descriptor, leave the system's memory; nothing where it cannot be asked to.

    What a process wrote stays there in small pages, which a product that fetches far ahead reads a fifth more
    slowly; read back from the disk it comes in pages of 2 MB, where the file system has them (decision 10).
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # a file system that has no say in it
            os.fsync(file)  # what is not on the disk yet would stay
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def nodes() -> list[int]:
    """The memory nodes of the machine; [0] where the system does not report them."""
    numbers: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for part in _NODES.read_text().strip().split(","):
            first, _, last = part.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers or [0]


@contextlib.contextmanager
def interleaved() -> Iterator[None]:
    """Spread the pages that this thread, and those it starts meanwhile, touch first over all nodes, in turn.

    `UsageError` where the system cannot do that.
    """
    numbers = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        raise UsageError("numa: this system cannot interleave memory; wanted first-touch")
    set_policy, get_policy = numbers
    before, mask_before = ctypes.c_int(0), _Mask()
    _call(get_policy, ctypes.byref(before), mask_before, _MOST_NODES, None, 0)
    mask = _Mask()
    for node in nodes():
        mask[node // _WORD] |= 1 << node % _WORD
    _call(set_policy, _INTERLEAVE, mask, _MOST_NODES)
    try:
        yield
    finally:
        _call(set_policy, before.value, mask_before if any(mask_before) else None, _MOST_NODES)


_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_Mask = ctypes.c_ulong * (_MOST_NODES // _WORD)


def _call(number: int, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), *arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise UsageError(f"numa: the system refuses to interleave memory ({reason}); wanted first-touch")
