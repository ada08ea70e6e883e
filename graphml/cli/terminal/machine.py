"""What this machine is and how fast its memory is, for `graphml doctor`. Knows no models and no backends."""

from __future__ import annotations

import platform
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from graphml.system.processor_reports import cpuinfo, sysctl

# What of a processor's features matters for products of vectors.
SIMD = re.compile(
    r"sse4_?[12]|ssse3|avx|avx2|fma|f16c|avx_vnni|avxvnni|avx512\w*|amx_\w+|bmi2|neon|asimd\w*|fphp|sve\w*|i8mm|bf16"
)
BANDWIDTH_BYTES = 256 << 20  # larger than the caches of any desktop processor
BANDWIDTH_ROUNDS = 4


def cpu_name() -> str:
    """The processor's name, as far as the system reports it."""
    if sys.platform == "linux":
        match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo(), re.MULTILINE)
        if match:
            return match[1].strip()
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string") or platform.processor()
    return platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """The processor's SIMD features by the system's names; empty where the system does not report them."""
    if sys.platform == "linux":
        match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo(), re.MULTILINE)
        words = match[1].split() if match else []
    elif sys.platform == "darwin":
        words = f"{sysctl('machdep.cpu.features')} {sysctl('machdep.cpu.leaf7_features')}".lower().split()
    else:
        words = []
    return sorted(word for word in words if SIMD.fullmatch(word))


def read_bandwidth(threads: int) -> float:
    """Bytes per second at which so many threads together read memory: the best of a few rounds.

    Generating a token reads every weight once, so this bounds its speed.
    """
    data = np.ones(BANDWIDTH_BYTES // 8, np.int64)
    parts = np.array_split(data, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(BANDWIDTH_ROUNDS):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))  # releases the lock, and is not bound by arithmetic
            best = max(best, data.nbytes / (time.perf_counter() - start))
    return best
