"""The only reader of the process environment: every `GRAPHML_*` variable, its type and its default.

Knows nothing of what the settings are used for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from graphml.errors import UsageError


def cache_folder() -> Path:
    """Where downloads and compiled kernels are kept: `GRAPHML_CACHE`, else the platform's cache folder."""
    chosen = os.environ.get("GRAPHML_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "graphml"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "graphml"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "graphml"


def state_folder() -> Path:
    """Where the history of a person's inputs is kept: the platform's folder for the state of programs."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "graphml"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "graphml"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "graphml"


def dumb_terminal() -> bool:
    """`TERM`: the terminal understands no escape codes."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def colours() -> bool:
    """`NO_COLOR`, `TERM`: text on a terminal may be dimmed and coloured."""
    return not os.environ.get("NO_COLOR") and not dumb_terminal()


def cpu_level() -> str | None:
    """`GRAPHML_CPU_LEVEL`: instruction set to compile for (`avx512`, `avx2`, ...); unset: the best."""
    return os.environ.get("GRAPHML_CPU_LEVEL") or None


def threads() -> int | None:
    """`GRAPHML_THREADS`: worker threads of the CPU backend; unset: the physical cores."""
    value = os.environ.get("GRAPHML_THREADS")
    if value and not (value.isdecimal() and int(value)):
        raise UsageError(f"GRAPHML_THREADS: wanted a whole number of at least 1, got {value!r}")
    return int(value) if value else None


def fuse() -> str:
    """`GRAPHML_FUSE`: which fusions are on (`none`, `-swiglu,+linear`); unset: all."""
    return os.environ.get("GRAPHML_FUSE", "")


def pages() -> str | None:
    """`GRAPHML_PAGES`: where weights lie (`ahead`, `map`, `huge`, `copy`); unset: `ahead`."""
    return os.environ.get("GRAPHML_PAGES") or None


def numa() -> str | None:
    """`GRAPHML_NUMA`: on which memory node they lie (`first-touch`, `interleave`); unset: `first-touch`."""
    return os.environ.get("GRAPHML_NUMA") or None


def of_backend(backend: str, name: str) -> str | None:
    """`GRAPHML_<BACKEND>_<NAME>`: what a backend, a stranger's too, lets its users choose; unset: None."""
    return os.environ.get(f"GRAPHML_{backend}_{name}".upper()) or None


def tuned() -> bool:
    """`GRAPHML_TUNED`: kernels use the parameters that `graphml tune` found."""
    return os.environ.get("GRAPHML_TUNED", "") not in ("", "0")


def offline() -> bool:
    """`GRAPHML_OFFLINE`: nothing is downloaded and no server is asked; `HF_HUB_OFFLINE` says the same."""
    return any(_is_on(os.environ.get(name, "")) for name in ("GRAPHML_OFFLINE", "HF_HUB_OFFLINE"))


def _is_on(value: str) -> bool:
    """As huggingface-hub takes its own variables, and other numbers than 0 too."""
    return value.upper() not in ("", "0", "OFF", "NO", "FALSE")


def verify() -> bool:
    """`GRAPHML_VERIFY`: check the graph after every pass."""
    return os.environ.get("GRAPHML_VERIFY", "") not in ("", "0")


def debug() -> bool:
    """`GRAPHML_DEBUG`: the command line shows the traceback of an error; see `debug_kernels` too."""
    return os.environ.get("GRAPHML_DEBUG", "") not in ("", "0")


def debug_kernels() -> bool:
    """`GRAPHML_DEBUG=kernels`: the text of kernels is shown on stderr when it is made."""
    return os.environ.get("GRAPHML_DEBUG", "") == "kernels"


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours with `changes`."""
    return {**os.environ, **changes}
