"""The only reader of the environment: each `GRAPHML_*` variable with its name, type, default and help.

The table in docs/cpu.md is derived from these values. Knows nothing of what the settings are used for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from graphml.errors import UsageError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Kind(Generic[T_co]):
    """A type of variables: what its texts are, and the value of one; a ValueError for other texts.

    words: all the texts, of a type that has only some.
    """

    text: str
    read: Callable[[str], T_co]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting(Generic[T]):
    """An environment variable; called, it returns its value, the default where it is unset or empty.

    summary: what it is, with the words of its type in place of `{words}`. shown: the default in words, where
    `default` leaves the choice to the reader. same_as: a variable of another program with the same meaning;
    either of both can say what is not the default. Raises `UsageError` for a text that is not of the type.
    Backends define their own variables, `GRAPHML_BACKEND_NAME`, as module-level constants.
    """

    name: str
    kind: Kind[T]
    default: T
    summary: str
    shown: str = ""
    same_as: str = ""

    def __call__(self) -> T:
        """Its value now."""
        for name in filter(None, (self.name, self.same_as)):
            value = self._value(name)
            if value != self.default:
                return value
        return self.default

    @property
    def text(self) -> str:
        """What the setting is."""
        return self.summary.format(words=self.kind.text)

    def _value(self, name: str) -> T:
        text = os.environ.get(name)
        if not text:
            return self.default
        try:
            return self.kind.read(text)
        except ValueError:
            raise UsageError(f"{name}: wanted {self.kind.text}, or nothing; got {text!r}") from None


def _is_on(text: str) -> bool:
    """As huggingface-hub takes its own variables, and other numbers than 0 too."""
    return text.upper() not in ("0", "OFF", "NO", "FALSE")


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise ValueError
    return int(text)


def _hashes(text: str) -> frozenset[str]:
    hashes = [word.strip().lower() for word in text.split(",")]
    if not all(re.fullmatch("[0-9a-f]{64}", word) for word in hashes):
        raise ValueError
    return frozenset(hashes)


def one_of(*words: str) -> Kind[str]:
    """The type of variables that are one of these words."""
    *others, last = words
    text = f"{', '.join(others)} or {last}" if others else last
    return Kind(text, lambda word: words[words.index(word)], words)  # index raises the ValueError


FOLDER = Kind("a folder", lambda text: Path(text).expanduser())
FILE = Kind("a file", lambda text: Path(text).expanduser())
SWITCH = Kind("0 or 1", _is_on)
COUNT = Kind("a whole number of at least 1", _count)
TEXT = Kind("text", str)
LEVELS = ("debug", "info", "warning", "error")

cache = Setting(
    "GRAPHML_CACHE", FOLDER, None, "Folder of downloads, compiled kernels and results of tuning.",
    shown="`graphml` in the platform's cache folder",
)  # fmt: skip
config = Setting(
    "GRAPHML_CONFIG", FILE, None, "File of settings of the command line.",
    shown="`graphml.toml` in the platform's folder of settings",
)  # fmt: skip
ops = Setting(
    "GRAPHML_OPS", TEXT, "",
    f"Python files that declare ops of one's own, `{os.pathsep}` between them; they are run.", shown="none",
)  # fmt: skip
trusted_archs = Setting(
    "GRAPHML_TRUSTED_ARCHS", Kind("SHA-256 hashes with commas between them", _hashes), frozenset(),
    "Hashes of definitions of architectures that model files carry and that are run.", shown="none",
)  # fmt: skip
offline = Setting(
    "GRAPHML_OFFLINE", SWITCH, False, "Download nothing and ask no server.", same_as="HF_HUB_OFFLINE"
)
threads = Setting(
    "GRAPHML_THREADS", COUNT, None, "Worker threads; by default the physical cores.",
    shown="the physical cores",
)  # fmt: skip
cpu_level = Setting(
    "GRAPHML_CPU_LEVEL", TEXT, None, "Instruction set of the CPU backend's kernels, such as avx512 or avx2.",
    shown="the best of the processor",
)  # fmt: skip
compile_processes = Setting(
    "GRAPHML_COMPILE_PROCESSES", COUNT, None, "Processes that compile kernels of the CPU backend at once.",
    shown="the physical cores, at most 4",
)  # fmt: skip
pages = Setting(
    "GRAPHML_PAGES", one_of("ahead", "map", "huge", "copy"), "ahead", "Memory pages of weights: {words}."
)
numa = Setting(
    "GRAPHML_NUMA", one_of("first-touch", "interleave"), "first-touch",
    "NUMA policy of weights: {words}.",
)  # fmt: skip
pin = Setting(
    "GRAPHML_PIN", SWITCH, False,
    "Pin worker threads to cores, neighbours on one NUMA node; Linux only.",
)  # fmt: skip
tuned = Setting("GRAPHML_TUNED", SWITCH, False, "Use kernel parameters saved by `graphml tune`.")
fuse = Setting(
    "GRAPHML_FUSE", TEXT, "",
    "Which fusions are on: none, or names such as -swiglu,+linear; by default all.", shown="all",
)  # fmt: skip
ray_rows = Setting(
    "GRAPHML_RAY_ROWS", one_of("f32", "f16"), "f32", "How hidden rows travel between stages of Ray: {words}."
)
verify = Setting("GRAPHML_VERIFY", SWITCH, False, "Check every index and loop of GPU kernels.")
log = Setting(
    "GRAPHML_LOG",
    Kind("debug, info, warning or error", lambda text: LEVELS[LEVELS.index(text.lower())], LEVELS),
    None, "Show the log on stderr from this level on: {words}.", shown="none",
)  # fmt: skip
debug = Setting(
    "GRAPHML_DEBUG", Kind("0, 1 or kernels", _is_on), False,
    "Show the traceback of an error on the command line; `kernels` also shows the text of GPU kernels.",
)  # fmt: skip


def is_stated(variable: str) -> bool:
    """Whether the environment has a value for a variable of this module, or for one of the same meaning."""
    names = [
        name
        for setting in globals().values()
        if isinstance(setting, Setting) and setting.name == variable
        for name in (setting.name, setting.same_as)
    ]
    return any(os.environ.get(name) for name in names if name)


def config_file() -> Path:
    """The file of settings: `config`, else `graphml.toml` in the platform's folder of settings."""
    chosen = config()
    if chosen is not None:
        return chosen
    if sys.platform == "win32":
        folder = _windows_folder("APPDATA", "Roaming")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support" / "graphml"
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "graphml"
    return folder / "graphml.toml"


def _windows_folder(variable: str, name: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / "AppData" / name) / "graphml"


def has_config_file() -> bool:
    """Whether there is a file of settings, or one is named."""
    return config() is not None or config_file().is_file()


def debug_kernels() -> bool:
    """`GRAPHML_DEBUG=kernels`: the text of kernels is shown on stderr when it is made."""
    return os.environ.get(debug.name) == "kernels"


def cache_folder() -> Path:
    """Where downloads and compiled kernels are kept: `cache`, else the platform's cache folder."""
    chosen = cache()
    if chosen is not None:
        return chosen
    if sys.platform == "win32":
        return _windows_folder("LOCALAPPDATA", "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "graphml"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphml"


def ollama_folders() -> list[Path]:
    """Where ollama keeps its models: `OLLAMA_MODELS`, else its folders of a person and of a service."""
    stated = os.environ.get("OLLAMA_MODELS")
    folders = [stated] if stated else ["~/.ollama/models", "/usr/share/ollama/.ollama/models"]
    return [Path(folder).expanduser() for folder in folders]


def ray_address() -> str:
    """The Ray cluster that `RAY_ADDRESS` names; "auto": the one that this machine is a node of."""
    return os.environ.get("RAY_ADDRESS") or "auto"


def quiet_ray() -> None:
    """Have Ray print nothing of calls that have failed and that nobody waits for any more."""
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")


def state_folder() -> Path:
    """Where the history of a person's inputs is kept: the platform's folder for the state of programs."""
    if sys.platform == "win32":
        return _windows_folder("LOCALAPPDATA", "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "graphml"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "graphml"


def dumb_terminal() -> bool:
    """`TERM`: the terminal understands no escape codes."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def colours() -> bool:
    """`NO_COLOR`, `TERM`: text on a terminal may be dimmed and coloured."""
    return not os.environ.get("NO_COLOR") and not dumb_terminal()


def without(name: str) -> None:
    """Take a variable out of this process's environment."""
    os.environ.pop(name, None)


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours with `changes`."""
    return {**os.environ, **changes}


def python_child(*arguments: str, **changes: str) -> tuple[list[str], dict[str, str]]:
    """The command and environment of another Python, which finds the modules that this one finds.

    The current folder is not on its path because of being current: one may hold a clone, a folder `graphml`.
    """
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    return [sys.executable, "-P", *arguments], child_environment({"PYTHONPATH": path, **changes})


def confined_python_child(program: Path) -> tuple[list[str], dict[str, str]]:
    """The same of a Python that runs this file and has nothing of our environment but where libraries are.

    It runs no start-up code of a user or a package.
    """
    kept = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    command, every = python_child("-s", "-S", str(program))
    return command, {name: every[name] for name in ("PYTHONPATH", *kept) if name in every}


def llama_variables() -> dict[str, str]:
    """`LLAMA_ARG_NAME` and `LLAMA_API_KEY`: flags of `graphml serve`, by llama-server's names."""
    return {
        name: text
        for name, text in os.environ.items()
        if name.startswith("LLAMA_ARG_") or name == "LLAMA_API_KEY"
    }
