"""A process that takes itself for one on Windows or macOS: `python -m tests.other_system win32|darwin`.

It imports every module, prints the help of every command, runs some, renders a chat template and generates 8
tokens, the same as on this system. What those systems lack is taken away, and what Windows has instead is
made of this system's functions. Libraries are those of this system, imported before; kernels run on it, too.
"""

from __future__ import annotations

import ctypes
import importlib
import marshal
import mmap
import os
import pkgutil
import select
import signal
import socket
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

PACKAGES = (
    "graphml", "graphml_cpu", "graphml_gpu", "graphml_models", "graphml_numba", "graphml_quant",
    "graphml_reference",
)  # fmt: skip
WORK = (
    "doctor", "models", "models --suggest", "cache", "tokenize -m stories260k Hello",
    "run stories260k -p Hello -n 2 --temp 0",
)  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}Once upon"
MEMORY = 8 << 30, 6 << 30
POSIX_MODULES = ("fcntl", "termios", "tty", "pty", "resource", "pwd", "grp", "readline", "curses")

# By module what macOS lacks, and what Windows lacks besides. Libraries of this system need SIGKILL.
LINUX: dict[ModuleType, str] = {
    os: "sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate memfd_create",
    mmap: "MADV_HUGEPAGE MAP_POPULATE",
    select: "epoll",
    signal: "sigtimedwait",
}
POSIX: dict[ModuleType, str] = {
    os: "geteuid getuid getgid getegid sysconf fork register_at_fork pread pwrite statvfs fchmod killpg "
    "setsid mkfifo uname nice getloadavg sched_yield chown posix_spawn openpty O_NOFOLLOW O_CLOEXEC",
    mmap: "MADV_WILLNEED MADV_DONTNEED MADV_SEQUENTIAL MADV_RANDOM MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS "
    "MAP_ANON",
    select: "poll",
    signal: "SIGHUP SIGUSR1 SIGUSR2 SIGPROF SIGALRM SIGQUIT SIGPIPE SIGTSTP SIGWINCH SIGCONT SIGCHLD "
    "setitimer getitimer ITIMER_PROF ITIMER_REAL alarm pause pthread_sigmask pthread_kill sigwait",
    socket: "AF_UNIX SO_REUSEPORT sendmsg",
}


class _Map(mmap.mmap):
    """Without the method that Windows lacks."""

    @property
    def madvise(self) -> Any:  # type: ignore[override]
        raise AttributeError


def become(system: str) -> None:
    """Take away what a system lacks."""
    sys.platform = system
    for lacking in (LINUX, POSIX)[: 1 + (system == "win32")]:
        for module, names in lacking.items():
            for name in names.split():
                if hasattr(module, name):
                    delattr(module, name)
    if system == "win32":
        sys.modules.update(dict.fromkeys(POSIX_MODULES))  # type: ignore[arg-type]
        mmap.mmap = _Map  # type: ignore[misc]
        library = ctypes.CDLL(None)
        kernel = SimpleNamespace(
            SwitchToThread=library.sched_yield, Sleep=library.usleep, GlobalMemoryStatusEx=memory_status
        )
        ctypes.WinDLL = lambda name: {"kernel32": kernel}[name]  # type: ignore[attr-defined]


def memory_status(reference: Any) -> int:
    """As Windows's function: `MEMORY`, in all and available."""
    words = ctypes.cast(reference, ctypes.POINTER(ctypes.c_uint64))
    assert words[0] == 64
    words[1], words[2] = MEMORY
    return 1


def modules() -> list[str]:
    """Our modules' names, but of other engines' processes and of what imports torch or lm_eval."""
    names = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        names += [package, *(module.name for module in pkgutil.walk_packages(root.__path__, f"{package}."))]
    elsewhere = (
        "graphml.peers.", "graphml.torch_module.", "graphml.finetuning.training", "graphml.workshop.lm_eval"
    )  # fmt: skip
    return [name for name in names if not name.endswith("__main__") and not name.startswith(elsewhere)]


def work(names: list[str]) -> tuple[str, list[int]]:
    """Import the modules and run commands; a rendered chat, and the eight tokens that follow it."""
    for name in names:
        importlib.import_module(name)
    from typer.testing import CliRunner

    import graphml
    from graphml.cli.main import COMMANDS, app
    from graphml.cli.terminal import machine

    machine.BANDWIDTH_BYTES = 1 << 20
    for command in ["--help", *(f"{name} --help" for name in COMMANDS), *WORK]:
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 0, (command, result.output, result.exception)
    with graphml.load("stories260k", template=TEMPLATE, threads=2) as model:
        ids = model.prompt_ids([{"role": "user", "content": "A dog."}])
        return model.decode(ids), [token.id for token in model.session().generate(ids, max_tokens=8)]


def main(system: str) -> None:
    """Do it all; an error ends the process."""
    names = modules()
    wanted = work(names)
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]
    become(system)
    assert work(names) == wanted
    assert len(wanted[1]) == 8
    from graphml.system import kept_program
    from graphml.system.pages import free_memory, fresh, main_memory
    from graphml.text import template_renderer

    assert not fresh(4 << 20, large=True, small_head=1 << 16)[-9:].any()
    if system == "win32":
        assert (main_memory(), free_memory()) == MEMORY
        kept_program.confine()
        request = marshal.dumps(("{{ 1 + a }}", marshal.dumps({"a": 1}), ""))
        assert template_renderer._answer(request) == (kept_program.TEXT, b"2")
    print(f"{len(names)} modules")


if __name__ == "__main__":
    main(sys.argv[1])
