"""Where engines and replicas run, and how many: what commands say of a cluster, checked before it is joined.

Knows names and numbers; nothing of Ray.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphml.errors import UsageError
from graphml.options.option_fields import Checked, Real, Whole, check, option

_LEAST_MOST = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def check_address(address: str) -> None:
    """UsageError for what names no cluster."""
    host, _, port = address.rpartition(":")
    is_pair = host and "://" not in address and port.isdecimal() and 0 < int(port) < 65536
    if address != "auto" and not is_pair:
        raise UsageError(
            f"--ray: wanted HOST:PORT of a head node or 'auto', on a node of its cluster; got {address!r:.80}"
        )


def _address(name: str, value: object) -> str | None:
    if value is not None:
        check_address(str(value))
    return None if value is None else str(value)


def least_and_most(text: str) -> tuple[int, int]:
    """Of "N" or "LEAST-MOST", numbers of replicas."""
    match = _LEAST_MOST.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise UsageError(f"--replicas: wanted N or LEAST-MOST from 1 on; got {text!r:.40}")
    return least, most


@contextmanager
def importing_ray() -> Iterator[None]:
    """Within, modules are imported that need the extra `ray`; UsageError without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"--ray: {error.name} is missing; pip install '.[ray]' in a clone") from None


@dataclass(frozen=True)
class EnginesOptions:
    """Where engines of a batch job run.

    ray: HOST:PORT of the head node, or "auto"; None, of a command: in its own process. engine_cpus are the
    threads of an engine, too.
    """

    ray: str | None = option(
        None, "Engines on the nodes of a Ray cluster: the address of its head node, or auto.", "--ray",
        metavar="HOST:PORT", range=Checked(_address),
    )  # fmt: skip
    engines: int | None = option(
        None, "Engines on the cluster; one a node by default.", "--engines", range=Whole(1)
    )
    engine_cpus: float | None = option(
        None, "CPUs of a node for each engine, which may be a fraction; by default all.", "--engine-cpus",
        range=Real(1e-4, 1e6),
    )  # fmt: skip
    engine_gpus: float = option(0.0, "GPUs of a node for each engine.", "--engine-gpus", range=Real(0, 1e6))

    def __post_init__(self) -> None:
        check(self, by_flag=True)


@dataclass(frozen=True)
class ReplicaOptions:
    """Where replicas of a server run, and how many: from least to most, as requests want them.

    address: HOST:PORT of the head node, or "auto". cpus, gpus: of a node for each; cpus are its threads, too.
    """

    address: str = "auto"
    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        check_address(self.address)
        least_and_most(f"{self.least}-{self.most}")
        if not self.cpus > 0 or not self.gpus >= 0:
            raise UsageError(
                f"--replica-cpus, --replica-gpus: wanted above 0, and 0 or more; got {self.cpus}, {self.gpus}"
            )
