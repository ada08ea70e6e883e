"""Descriptions of a model file and of the machine for rows: names, sizes, versions. Measures nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

import graphml
from graphml.backend import Progress, no_progress
from graphml.weights import ModelFile
from graphml.weights.type_mixes import FILE_TYPES

CHUNK_BYTES = 8 << 20
HASHING = "checksum"


def describe_file(file: ModelFile) -> dict[str, Any]:
    """model_type ("llama 1.1B Q4_K_M"), model_size in bytes and model_n_params, like llama-bench."""
    n_params = sum(prod(tensor.shape) for tensor in file.tensors.values())
    n_bytes = file.n_weight_bytes
    number = file.metadata.integer("general.file_type") if file.metadata.has("general.file_type") else -1
    known = [kind.name for kind in FILE_TYPES.values() if kind.number == number]
    arch = file.metadata.text("general.architecture")
    parts = [arch, short_count(n_params), known[0] if known else "mixed"]
    return {"model_type": " ".join(parts), "model_size": n_bytes, "model_n_params": n_params}


def short_count(count: int) -> str:
    """1100048384 -> "1.1B", 134515008 -> "135M"."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            value = count / unit
            return f"{value:.1f}".removesuffix(".0") + name if value < 10 else f"{value:.0f}{name}"
    return str(count)


def sha256(path: Path, progress: Progress = no_progress) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest, done, whole = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(HASHING, done, whole)
    return digest.hexdigest()


@dataclass(frozen=True)
class Environment:
    """The machine of rows. build_commit: of the checkout that graphml runs from, "" if it is none."""

    build_commit: str
    cpu_info: str
    cpu_cores: int
    cpu_governor: str
    os: str
    python: str
    numpy: str
    llvmlite: str
    load_average: float


def environment(cpu_name: str) -> Environment:
    """The environment of this machine."""
    return Environment(
        commit(),
        cpu_name,
        os.cpu_count() or 1,
        _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        platform.python_version(),
        _version("numpy"),
        _version("llvmlite"),
        os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    )


def commit() -> str:
    """The commit of the checkout, "-dirty" if files differ from it; "" for an installed package."""
    folder = Path(graphml.__file__).parents[1]
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
