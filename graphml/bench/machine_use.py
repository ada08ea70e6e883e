"""What a run takes of the machine: energy, and processor time of this and of other processes.

Linux reports both: the counters of RAPL (`/sys/class/powercap`), which usually root alone may read, and
`/proc/stat`. Elsewhere they are not known. Knows files and numbers; nothing of sides.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
STAT = Path("/proc/stat")
BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq, of the first line's numbers


@dataclass
class Energy:
    """The energy that the processors' packages have used. reason: why it is not known; "": it is."""

    folder: Path = POWERCAP
    reason: str = ""
    _wraps: dict[Path, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        packages = [path for path in sorted(self.folder.glob("*-rapl:*")) if path.name.count(":") == 1]
        if not packages:
            self.reason = f"{self.folder} has no counters of the processor"
            return
        try:
            for path in packages:
                _number(path / "energy_uj")
                self._wraps[path] = _number(path / "max_energy_range_uj")
        except (OSError, ValueError) as error:
            self._wraps.clear()
            self.reason = f"{path / 'energy_uj'}: {getattr(error, 'strerror', None) or error}"

    def read(self) -> dict[Path, float]:
        """Microjoules of each package; they count round."""
        try:
            return {path: _number(path / "energy_uj") for path in self._wraps}
        except (OSError, ValueError):
            return {}

    def since(self, before: dict[Path, float]) -> float:
        """Joules since an earlier reading; 0 if it is not known."""
        now = self.read()
        used = [(now[path] - value) % self._wraps[path] for path, value in before.items() if path in now]
        return sum(used) / 1e6


def _number(path: Path) -> float:
    return float(path.read_text(encoding="ascii"))


def busy_s(stat: Path = STAT) -> float:
    """Processor seconds that all processes of the machine have used; 0 if the system does not report it."""
    try:
        numbers = stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        return sum(int(numbers[i]) for i in BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
