"""Windows and macOS, as far as processes here can stand for them: folders, memory, signals, output."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from graphml_cpu import processors

from graphml import settings
from graphml.backend import tuning_file
from graphml.cli import main as command_line
from graphml.cli.terminal import machine
from graphml.errors import BackendError, UsageError
from graphml.runtime.store import block_files
from graphml.server import listening
from graphml.server.access.open_connections import OpenConnections
from graphml.system import pages, processor_reports
from graphml.system.keyboard import keyboard_mode
from graphml.system.signals import interrupts, on_signal
from tests.other_system import MEMORY, memory_status

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_everything_is_imported_and_a_story_told_without_what_a_system_lacks(system: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.other_system", system],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("variable", ["", "here"])
@pytest.mark.parametrize(
    ("system", "names", "folders"),
    [
        ("win32", ("LOCALAPPDATA", "LOCALAPPDATA", "APPDATA"),
         ("AppData/Local", "AppData/Local", "AppData/Roaming")),
        ("darwin", (), ("Library/Caches", "Library/Application Support", "Library/Application Support")),
        ("linux", ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"),
         (".cache", ".local/state", ".config")),
    ],
)  # fmt: skip
def test_folders_are_where_a_system_has_them(
    system: str, names: tuple[str, ...], folders: tuple[str, ...], variable: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("GRAPHML_CACHE", "GRAPHML_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        monkeypatch.setenv(name, variable and str(tmp_path / name))
    wanted = [tmp_path / folder / "graphml" for folder in (names or folders if variable else folders)]
    assert [settings.cache_folder(), settings.state_folder(), settings.config_file().parent] == wanted


def test_memory_is_what_windows_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    kernel = SimpleNamespace(GlobalMemoryStatusEx=memory_status)
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: {"kernel32": kernel}[name], raising=False)
    assert (pages.main_memory(), pages.free_memory()) == MEMORY
    kernel.GlobalMemoryStatusEx = lambda status: 0
    assert pages.main_memory() is None


def test_memory_is_what_linux_reports_else_a_quarter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, status = "MemTotal: 9 kB\nMemAvailable:  3 kB\n", "Name: x\nVmRSS:\t 5 kB\n"
    for name, text in (("_MEMORY", memory), ("_STATUS", status)):
        monkeypatch.setattr(pages, name, tmp_path / name)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert (pages.free_memory(), pages.own_memory()) == (3 << 10, {"VmRSS": 5 << 10})
    for name in ("_MEMORY", "_STATUS"):
        (tmp_path / name).unlink()
    assert (pages.free_memory(), pages.own_memory()) == ((pages.main_memory() or 0) // 4, {})
    monkeypatch.delattr(os, "sysconf")
    assert (pages.main_memory(), pages.free_memory()) == (None, 1 << 30)


def test_the_processor_is_what_macos_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    values = {
        "hw.perflevel0.physicalcpu": "6",
        "hw.optional.arm.FEAT_DotProd": "1", "hw.optional.arm.FEAT_I8MM": "0",
        "machdep.cpu.brand_string": "A processor", "machdep.cpu.features": "SSE4.1 AVX1.0 FMA",
    }  # fmt: skip

    def run(command: list[str], **options: Any) -> Any:
        if command[-1] not in values:
            raise subprocess.CalledProcessError(1, command)
        return SimpleNamespace(stdout=f"{values[command[-1]]}\n")

    monkeypatch.setattr(processor_reports.subprocess, "run", run)
    assert (processors.physical_cores(), processors.arm_features()) == (6, ("dotprod",))
    assert (machine.cpu_name(), machine.cpu_features()) == ("A processor", ["fma"])


@pytest.mark.parametrize("windows", [False, True])
def test_a_signal_calls_in_the_loop(windows: bool) -> None:
    async def wait() -> None:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        if windows:
            loop.add_signal_handler = refuse  # type: ignore[method-assign]
        on_signal(loop, "SIGNOT", came.set)
        on_signal(loop, "SIGINT", came.set)
        signal.raise_signal(signal.SIGINT)
        await came.wait()

    def refuse(*arguments: Any) -> None:
        raise NotImplementedError

    before = signal.getsignal(signal.SIGINT)
    with interrupts(signal.default_int_handler):
        asyncio.run(wait())
    assert signal.getsignal(signal.SIGINT) is before


def test_a_server_without_unix_sockets_says_so_and_keeps_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_KEEPALIVE, raising=False)
    with listening.listening(["127.0.0.1"], 0, OpenConnections(8)) as (sock,):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    with (
        pytest.raises(UsageError, match=r"--host .*own.sock: this system has no UNIX sockets"),
        listening.listening([str(tmp_path / "own.sock")], 0, OpenConnections(8)),
    ):
        pass


def test_a_keyboard_without_modes_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "termios", None)
    with keyboard_mode(lines=True) as changed:
        assert not changed


@pytest.mark.parametrize(
    ("system", "wanted"), [("win32", "\N{BLACK CHESS QUEEN} é".encode()), ("linux", "? é".encode("cp1252"))]
)
def test_output_in_few_letters_is_utf_8_on_windows(
    system: str, wanted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(command_line, "app", lambda prog_name: print("\N{BLACK CHESS QUEEN} é", end=""))
    monkeypatch.setattr(command_line.gc, "set_threshold", lambda *counts: None)
    command_line.main()
    sys.stdout.flush()
    assert written.getvalue() == wanted


def test_a_file_that_is_open_elsewhere_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows replaces no file that is open."""
    file = tmp_path / "tuning.json"
    tuning_file.write(file, [{"kept": 1}])

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Access is denied", str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(BackendError, match=r"tuning\.json: .*Access is denied"):
        tuning_file.write(file, [{"new": 2}])
    assert tuning_file.read(file) == [{"kept": 1}]
    assert list(tmp_path.iterdir()) == [file]


def test_a_block_that_is_read_now_stays_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows removes no file that is open."""
    files = block_files.BlockFiles(tmp_path / "store", {}, {}, max_bytes=2)
    folder = tmp_path / "store" / ("a" * 24)
    folder.mkdir()
    paths = [folder / f"{number}.safetensors" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == paths[0]:
            raise PermissionError(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError):
        files._remove_oldest(1)
    monkeypatch.setattr(sys, "platform", "win32")
    files._remove_oldest(0)
    assert [path.exists() for path in paths] == [True, False, False]
