"""The memory that the threads of a team share: where each word lies, and the functions to wait with.

Knows the layout and the operating system's functions; knows neither numba nor Python's threads.
"""

from __future__ import annotations

import ctypes
import platform
import sys

import numpy as np
from numpy.typing import NDArray

# Byte offsets. Words that different threads write are 128 bytes apart: prefetchers fetch lines in pairs.
ARRIVED = 0  # threads at the barrier
GENERATION = 128  # barriers passed
STOP = 256  # a caller wants the run to end early
STOPPED = 384  # what the last barrier decided about it
WORK = 512  # runs begun; the low half is the futex word
TABLE = 520  # address of the walkers' arguments: two int64 per thread
CLOSING = 528  # the workers shall end
DONE = 640  # workers that finished this run
SLEEPERS = 768  # workers asleep in the system
YIELD_FUNCTION = 896  # addresses of C functions, written once
SLEEP_FUNCTION = 904
SLEEP_ARGUMENT = 912
FUTEX_FUNCTION = 920  # libc's syscall(), or 0
FUTEX_NUMBER = 928
SPINS = 936  # pauses before a waiting thread yields
SIZE = 1024

# Pauses of 20 to 60 ns: about 10 us of waiting at full attention. Measured with other processes on the same
# two cores: when the system puts two of our threads on one core, every barrier costs the whole spin (2500
# pauses: 67 us a step, 300: 13 us); when it gives a core to somebody else, a thread that yields too early
# waits for a time slice (10 pauses: up to 3 ms a step).
_SPINS = 400
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}


def new_sync_memory(*, crowded: bool = False) -> NDArray[np.int64]:
    """Zeroed words with the system's functions filled in, aligned to 128 bytes.

    `crowded`: more threads than processors, where a spinning thread holds up the one that it waits for.
    """
    raw = np.zeros(SIZE // 8 + 16, np.int64)
    start = (-raw.ctypes.data % 128) // 8
    words: NDArray[np.int64] = raw[start : start + SIZE // 8]
    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        words[YIELD_FUNCTION // 8] = _address(kernel.SwitchToThread)
        words[SLEEP_FUNCTION // 8] = _address(kernel.Sleep)
        words[SLEEP_ARGUMENT // 8] = 1  # milliseconds
    else:
        library = ctypes.CDLL(None)
        words[YIELD_FUNCTION // 8] = _address(library.sched_yield)
        words[SLEEP_FUNCTION // 8] = _address(library.usleep)
        words[SLEEP_ARGUMENT // 8] = 50  # microseconds
        number = _FUTEX_NUMBERS.get(platform.machine(), 0)
        if sys.platform == "linux" and number and sys.byteorder == "little":
            words[FUTEX_FUNCTION // 8] = _address(library.syscall)
            words[FUTEX_NUMBER // 8] = number
    words[SPINS // 8] = 10 if crowded else _SPINS
    return words


def _address(function: object) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]  # a C function
