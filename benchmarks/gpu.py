"""Every GPU device of this machine: conformance, read bandwidth, then prefill and decode of a few models.

    benchmarks/gpu.sh [--backend wgpu] [--model NAME[:TYPE]]... [-p N] [-n N] [-r N] [-d N,...] [-npl N,...]
        [--out FOLDER]

NAME is a shape of `graphml bench` (then TYPE is its file type) or a model; by default SmolLM2 (or its shape,
where it was not brought) and the shapes of TinyLlama and phi-2. -d: tokens before those that are timed; -npl:
sequences that decode together. A device whose conformance fails is not timed; what it was found to be before,
by the JSON in FOLDER, with the same sources, is not found again. The tables go to stdout, every round as JSON
to a file in FOLDER, as it comes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphml_gpu.bandwidth import read_bandwidth

from graphml.bench.shapes import SHAPES
from graphml.loading import fetch

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Library:
    """Where a backend's devices and driver are, and the variable that chooses among them."""

    listing: str
    listed: str
    module: str
    driver: str
    variable: str


BACKENDS = {
    "wgpu": Library(
        "graphml_wgpu.adapters", "adapters", "graphml_wgpu.driver", "WgpuDriver", "GRAPHML_WGPU_ADAPTER"
    ),
    "opencl": Library(
        "graphml_opencl.devices", "devices", "graphml_opencl.driver", "OpenclDriver", "GRAPHML_OPENCL_DEVICE"
    ),
}
MODELS = ["tinyllama-1.1b:Q4_0", "phi-2:Q4_K_M"]
ROUNDS = 7
LIMITS = ("graphml", "ggml")
"""How close a device must be: as our kernels are, else, where its own exp and log are coarser, as ggml's."""


def graphml(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of graphml; its stderr is shown as it comes."""
    command = [sys.executable, "-m", "graphml", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def conformance(backend: str, limits: str) -> tuple[bool, str]:
    """Whether a backend means what the reference means, within limits, and the table of its ops.

    Compilers take minutes over a thousand kernels: where no bar shows it, each op is told when it is done.
    """
    begin, lines = time.perf_counter(), list[str]()
    command = [sys.executable, "-m", "graphml", "test-backend", backend, "--limits", limits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            lines.append(line)
            if not sys.stderr.isatty():
                print(f"{time.perf_counter() - begin:6.0f} s  {line.rstrip()}", file=sys.stderr, flush=True)
    return run.returncode == 0, "".join(lines)


def default_models() -> list[str]:
    """SmolLM2 if it is here (nothing is fetched), else a model of its shape, and the shapes that follow."""
    here = fetch.is_downloaded(fetch.MODELS["smollm2"])
    return ["smollm2" if here else "smollm2-135m:Q4_1", *MODELS]


def rows_of(backend: str, model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What `graphml bench` finds of a model, as its JSON has it."""
    name, _, kind = model.partition(":")
    which = ["--shape", name, "--type", kind or "Q4_K_M"] if name in SHAPES else ["-m", model]
    counts = ["-p", str(options.prompt), "-n", str(options.tokens), "-r", str(options.rounds)]
    counts += ["-d", options.depth, "-npl", options.parallel]
    run = graphml("bench", *which, *counts, "--backend", backend, "-o", "json")
    if run.returncode:
        print(f"{model} on {backend}: graphml bench ended with {run.returncode}", file=sys.stderr)
        return []
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


def devices(wanted: list[str]) -> list[tuple[str, int, Any]]:
    """Backend, number and facts of every device; what cannot be used is told."""
    found = []
    for backend in wanted:
        source = importlib.import_module(BACKENDS[backend].listing)
        reason = source.unavailable()
        if reason is not None:
            print(f"{backend}: {reason}", file=sys.stderr)
            continue
        found += [
            (backend, i, source.facts(one))
            for i, one in enumerate(getattr(source, BACKENDS[backend].listed)())
        ]
    return found


def sources() -> str:
    """A hash of all that decides whether a backend is right."""
    digest = hashlib.sha256()
    for file in sorted(
        path for room in ("backends", "graphml", "quant") for path in (ROOT / room).rglob("*.py")
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def checked(folder: Path, known: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run found of the conformance of a device with these sources, if it was right."""
    for path in sorted(folder.glob("*.json")):
        try:
            devices = json.loads(path.read_text())["devices"]
        except (ValueError, KeyError, TypeError):  # a run that was ended while it wrote
            continue
        for one in devices:
            if one.get("conformance") and all(one.get(name) == value for name, value in known.items()):
                return {name: one[name] for name in ("conformance", "limits", "conformance_s")}
    return None


def check(backend: str, found: dict[str, Any], folder: Path) -> bool:
    """Whether a device is right, said and put into what is found of it."""
    before = checked(folder, found)
    if before is not None:
        found |= before
        print(f"conformance by {found['limits']}'s limits: passed before, with the same sources", flush=True)
        return True
    for limits in LIMITS:
        begin = time.perf_counter()
        right, table = conformance(backend, limits)
        found |= {"conformance": right, "limits": limits, "conformance_s": time.perf_counter() - begin}
        said = (table.strip().splitlines() or ["nothing was printed"])[-1]
        print(f"conformance by {limits}'s limits: {said}, in {found['conformance_s']:.0f} s", flush=True)
        if right:
            return True
        print(table, flush=True)
    print("not timed", flush=True)
    return False


def measure(
    backend: str, number: int, facts: Any, options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]
) -> None:
    """All that is found of one device; kept as it comes."""
    library = BACKENDS[backend]
    os.environ[library.variable] = str(number)
    print(f"\n## {backend} {number}: {facts.name}\n\n{facts.driver}, {facts.kind}", flush=True)
    print(f"features: {facts.features()}", flush=True)
    found: dict[str, Any] = {"backend": backend, "device": facts.name, "driver": facts.driver}
    found |= {"sources": sources(), "kernels": os.environ.get("GRAPHML_GPU_KERNELS", "")}
    right = check(backend, found, options.out)
    keep(found)
    if not right:
        return
    opened = getattr(importlib.import_module(library.module), library.driver)()
    found["read_bandwidth"] = read_bandwidth(opened, ROUNDS)
    opened.close()
    print(f"memory is read at {found['read_bandwidth'] / 1e9:.1f} GB/s", flush=True)
    print("\n| model | test | t/s | spread | GB/s | of read bandwidth |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    found["rows"] = []
    for model in options.model or default_models():
        for row in rows_of(backend, model, options):
            found["rows"].append(row)
            share = row["gb_s"] * 1e9 / found["read_bandwidth"]
            cells = (
                row["model_type"], row["test"], f"{row['median_ts']:.1f}",
                f"{row['min_ts']:.1f} to {row['max_ts']:.1f}", f"{row['gb_s']:.1f}", f"{share:.1%}",
            )  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)
        keep(found)


def main() -> None:
    """Measure what the arguments ask for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--backend", action="append", choices=sorted(BACKENDS))
    parser.add_argument("--model", action="append", metavar="NAME[:TYPE]")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-d", "--depth", default="0")
    parser.add_argument("-npl", "--parallel", default="1")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    options = parser.parse_args()
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    now = datetime.now(UTC)
    print(f"# graphml on this machine's GPUs, {now:%Y-%m-%d}, commit {commit or 'unknown'}")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{now:%Y-%m-%d-%H%M%S}.json"
    kept: list[dict[str, Any]] = []

    def keep(device: dict[str, Any]) -> None:
        if not any(one is device for one in kept):
            kept.append(device)
        result = {"commit": commit, "time": now.isoformat(), "devices": kept}
        path.write_text(json.dumps(result, indent=1) + "\n")

    for one in devices(options.backend or list(BACKENDS)):
        measure(*one, options, keep)
    if not kept:
        raise SystemExit("no GPU device was found; `graphml doctor` says what is missing")
    print(f"\nevery round: {path}")
    raise SystemExit(0 if all(one["conformance"] for one in kept) else 1)


if __name__ == "__main__":
    main()
