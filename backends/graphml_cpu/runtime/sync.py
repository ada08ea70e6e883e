"""The memory that the threads of a team share: the address of each word, and the functions to wait with.

Knows the layout and the operating system's functions; knows neither the compiler nor Python's threads.
"""

from __future__ import annotations

import ctypes
import platform
import sys

import numpy as np
from numpy.typing import NDArray

# Byte offsets. Words that different threads write are 128 bytes apart: prefetchers fetch lines in pairs.
STATE = 0  # which stretch is open and how many are in it, see below
STOP = 128  # a caller wants the run to end early
STOPPED = 256  # what the last barrier decided about it
TABLE = 264  # address of the walkers' arguments, of the run that is on; written between runs, as what follows
FIRST_STRETCH = 272  # the number of the run's first stretch
FIRST_STEP = 280  # the number of the run's first step
NEXT_STEP = 288  # that of the next run's first step
WORK = 384  # runs begun; the low half is the futex word
CLOSING = 392  # the workers shall end
SLEEPERS = 512  # workers asleep in the system
YIELD_FUNCTION = 640  # addresses of C functions, written once
SLEEP_FUNCTION = 648
SLEEP_ARGUMENT = 656
FUTEX_FUNCTION = 664  # libc's syscall(), or 0
FUTEX_NUMBER = 672
SPINS = 680  # pauses before a waiting thread yields
LIMIT = 688  # threads that may take part in the run that is on: those of lower numbers
TAKEN = 696  # counter ticks of all runs so far
LOOKED_AT = 704  # the offset of the word at which waiting threads look: STATE's or OPEN's; written once
OPEN = 768  # of large teams: which stretch is open, how many threads are wanted there, and since when
CLAIMS = 896  # a line for each thread: which of its parts of which step are taken; behind them one for each
CLAIM_BYTES = 128  # group of threads: of how many of the group all parts are taken
LATE = 8  # within a thread's line: counter ticks that it waited longer than it spins
GROUP = 8  # threads

# STATE counts the threads that are in the open stretch of steps and those that were; the stretch's number
# stands above. Stretches and steps are numbered through all runs, so that a latecomer cannot mistake one.
MEMBER = 1
LEFT = 1 << 9
ACTIVE = 1 << 18  # a run is on
STRETCH_SHIFT = 19
COUNT_MASK = LEFT - 1
# A line of CLAIMS: the number of the step, and below it how many of the thread's parts are taken, or of a
# group how many of its threads have none left.
PART_BITS = 16
# OPEN has STATE's form, but the threads wanted instead of those in it, and instead of those that were how
# many stretches before a thread must have run. It changes once a stretch, where STATE changes with each
# thread: of many threads that wait there, each change would fetch the word anew.

# Pauses of 20 to 60 ns: about 10 us of waiting at full attention. Measured with other processes on the same
# two cores: when the system puts two of our threads on one core, every barrier costs the whole spin (2500
# pauses: 67 us a step, 300: 13 us); when it gives a core to somebody else, a thread that yields too early
# waits for a time slice (10 pauses: up to 3 ms a step).
_SPINS = 400
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}


def new_sync_memory(n_threads: int, *, crowded: bool = False, shows_open: bool = False) -> NDArray[np.int64]:
    """Zeroed words for so many threads with the system's functions filled in, aligned to 128 bytes.

    `crowded`: more threads than processors, where a spinning thread holds up the one that it waits for.
    `shows_open`: waiting threads look at OPEN.
    """
    size = CLAIMS + (n_threads + -(-n_threads // GROUP)) * CLAIM_BYTES
    raw = np.zeros(size // 8 + 16, np.int64)
    start = (-raw.ctypes.data % 128) // 8
    words: NDArray[np.int64] = raw[start : start + size // 8]
    words[NEXT_STEP // 8] = 1  # zero is what no claim has
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
    words[LIMIT // 8] = n_threads
    words[LOOKED_AT // 8] = OPEN if shows_open else STATE
    words[SPINS // 8] = 10 if crowded else _SPINS
    return words


def _address(function: object) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]  # a C function
