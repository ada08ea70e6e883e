"""Nodes of a Ray cluster as processes of this machine, begun by `ray start` as the docs say, on loopback."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"  # a token in the home folder would be asked for
RAY = Path(sys.executable).with_name("ray")
FREE_PORTS = (
    "--dashboard-agent-listen-port=0", "--metrics-export-port=0", "--dashboard-agent-grpc-port=0",
    "--runtime-env-agent-port=0",
)  # fmt: skip
SMALL = ("--object-store-memory=78643200", "--include-dashboard=false", "--disable-usage-stats")
"""The least object store that Ray accepts: nothing large is kept there."""
HOST = "127.0.0.1"


def free_port() -> int:
    """A port of loopback that nobody listens on, of those that neither the system nor Ray takes itself."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as sock, suppress(OSError):
            sock.bind((HOST, port))
            return port


class RayNodes:
    """A cluster of nodes with so many CPUs each; the first one is its head."""

    def __init__(self, folder: Path, count: int, cpus: int = 1) -> None:
        self._folder, self._cpus = folder, cpus
        self.address = f"{HOST}:{free_port()}"
        self.nodes: list[subprocess.Popen[Any]] = []
        for _ in range(count):
            self.add()

    def add(self, hidden: Path | None = None, **environment: str) -> int:
        """Start a node and wait until it has joined; hidden: a folder that is empty there. Its number."""
        place = (f"--address={self.address}",)
        if not self.nodes:
            place = ("--head", f"--port={self.address.split(':')[1]}", f"--temp-dir={self._folder}")
        # A driver joins by the node that has its own address.
        host = HOST if hidden is None else "127.0.0.2"
        command = [str(RAY), "start", *place, f"--node-ip-address={host}", "--block"]
        command += [f"--num-cpus={self._cpus}"]
        command += [*FREE_PORTS, *(SMALL if not self.nodes else (*SMALL[:1], SMALL[2]))]
        if hidden is not None:
            mounted = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mounted, str(hidden), *command]
        path = self._folder.with_name(f"{self._folder.name}-{len(self.nodes)}.log")
        env = {**os.environ, **environment}
        with path.open("wb") as log:
            node = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        self.nodes.append(node)
        end = time.monotonic() + 60
        while b"Ray runtime started" not in path.read_bytes():
            if time.monotonic() > end or node.poll() is not None:
                raise RuntimeError(path.read_text()[-2000:])
            time.sleep(0.1)
        return len(self.nodes) - 1

    def engines(self, name: str = "ray::_Engine") -> list[int]:
        """Processes of actors, on all nodes."""
        own = {pid for node in self.nodes for pid in _family(node.pid)}
        return [pid for pid in own if name.encode() in _command(pid)]

    def kill(self, number: int) -> None:
        """End a node at once with all that runs there."""
        for pid in reversed(_family(self.nodes[number].pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nodes[number].wait()

    def close(self) -> None:
        """End all nodes."""
        for number in reversed(range(len(self.nodes))):
            self.kill(number)
        shutil.rmtree(self._folder, ignore_errors=True)
        for log in self._folder.parent.glob(f"{self._folder.name}-*.log"):
            log.unlink()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _family(pid: int) -> list[int]:
    """A process and all that it has started, the elder first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    family = [pid]
    for member in family:
        family += parents.get(member, [])
    return family
