"""How many physical cores this process may use, and what ARM processors can do.

Knows where operating systems report it; nothing of threads or kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

from graphml.system.processor_reports import cpuinfo, sysctl


def usable_processors() -> list[int]:
    """Numbers of the logical processors that this process may run on."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Physical cores that this process may run on, at least 1; a container's CPU quota counts too."""
    if sys.platform == "linux":
        return max(1, min(_linux_cores(usable_processors()), _linux_quota()))
    if sys.platform == "darwin":
        # Threads that wait for each other at barriers are as slow as the slowest core: the fast ones only.
        return _number("hw.perflevel0.physicalcpu") or _number("hw.physicalcpu") or (os.cpu_count() or 1)
    return max(1, (os.cpu_count() or 2) // 2)


def core_order(processors: list[int], n_threads: int, root: Path = Path("/sys/devices/system")) -> list[int]:
    """Processors for the threads of a team, in the threads' order, all of `processors` in the end.

    Threads of neighbouring numbers share work first, so they are on one memory node; threads are distributed
    evenly over as few nodes as have a core for each. The second threads of cores come behind all cores.
    """
    nodes = _memory_nodes(processors, root / "node")
    cores = [_one_of_each_core(node, root / "cpu") for node in nodes]
    needed, room = 0, 0
    while needed < len(cores) and room < n_threads:
        room += len(cores[needed])
        needed += 1
    order: list[int] = []
    for i in range(needed):
        order += cores[i][: n_threads * (i + 1) // needed - n_threads * i // needed]
    for rest in (*cores, *nodes):
        order += [core for core in rest if core not in order]
    return order


def _memory_nodes(processors: list[int], root: Path) -> list[list[int]]:
    """The processors of each memory node; all of them on one where the system does not report them."""
    known = dict.fromkeys(processors, 0)
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        with contextlib.suppress(OSError, ValueError):
            for part in (folder / "cpulist").read_text().strip().split(","):
                first, _, last = part.partition("-")
                here = range(int(first), int(last or first) + 1)
                known.update({cpu: int(folder.name[4:]) for cpu in processors if cpu in here})
    return [[cpu for cpu in processors if known[cpu] == node] for node in sorted(set(known.values()))]


def _one_of_each_core(processors: list[int], root: Path) -> list[int]:
    """The first of each set of sibling threads; all where the system does not report them."""
    first_of_core: dict[str, int] = {}
    for number in processors:
        try:
            siblings = (root / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            return processors
        first_of_core.setdefault(siblings, number)
    return list(first_of_core.values())


def _linux_cores(processors: list[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Distinct sets of sibling threads among `processors`; all where the system does not report them."""
    return len(_one_of_each_core(processors, root))


def _linux_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that the control group's quota allows, rounded up; many if there is none."""
    with contextlib.suppress(OSError, ValueError):
        match = re.match(r"(\d+) (\d+)", path.read_text())
        if match:
            return max(1, -(-int(match[1]) // int(match[2])))
    return 1 << 16


def arm_features() -> tuple[str, ...]:
    """Which of `dotprod` and `i8mm` (LLVM's names) every core of this 64-bit ARM processor has."""
    if sys.platform == "linux":
        return _features_of(cpuinfo())
    if sys.platform == "darwin":
        known = {"dotprod": "hw.optional.arm.FEAT_DotProd", "i8mm": "hw.optional.arm.FEAT_I8MM"}
        return tuple(name for name, key in known.items() if _number(key))
    if sys.platform == "win32":
        # PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE of winnt.h
        asks = ctypes.WinDLL("kernel32").IsProcessorFeaturePresent
        return tuple(name for name, number in {"dotprod": 43, "i8mm": 66}.items() if asks(number))
    return ()


def _features_of(report: str) -> tuple[str, ...]:
    """Features that every `Features` line of Linux's report names: big and little cores may differ."""
    lines = re.findall(r"^Features\s*:(.*)$", report, flags=re.MULTILINE)
    common = set.intersection(*(set(line.split()) for line in lines)) if lines else set()
    return tuple(name for name, word in {"dotprod": "asimddp", "i8mm": "i8mm"}.items() if word in common)


def _number(name: str) -> int:
    """A number of macOS's kernel; 0 where there is none."""
    text = sysctl(name)
    return int(text) if text.isdecimal() else 0
