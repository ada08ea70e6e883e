"""What Linux and macOS report of the processor; nothing on other systems. Knows files and commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cpuinfo() -> str:
    """Linux's description of all processors; empty elsewhere."""
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    """A value of macOS's kernel; empty where there is none."""
    try:
        return subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
