"""`graphml doctor`: what this machine is, and which backends can be used on it and why not."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import asdict
from importlib import metadata
from typing import Annotated, Any

import typer

import graphml
from graphml import settings
from graphml.api.load_model import load_model
from graphml.backend import Backend, NamedDevice
from graphml.cli.options import options
from graphml.cli.options.opening import find
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal import machine
from graphml.cli.terminal.console import Bars, write_json
from graphml.loading import discovery, fetch
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.pages import main_memory
from graphml.system.progress_labels import size
from graphml.workshop.file_checks import WRONG, file_findings

DISTRIBUTION = "graphml-engine"
NOT_INSTALLED = (
    f"not installed: Python finds no metadata of {DISTRIBUTION}, which names the backends and architectures;"
    " `pip install --no-deps -e FOLDER` makes it for a folder of sources"
)
PACKAGES = ("numpy", "llvmlite", "tokenizers", "jinja2", "huggingface-hub")


@grouped
def doctor(
    source: options.ModelSource,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", show_default=False, help="Check this model's file instead."),
    ] = None,
    threads: options.Threads = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print the names of architectures.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show processor, instruction sets, threads, memory bandwidth, and which backends can be used.

    With MODEL, what is wrong or odd in its file: numbers, vocabulary, template, rope, what nobody reads.
    """
    if model is not None or source.named is not None or source.hf is not None:
        _check_file(model, source, json)
        return
    report = facts(threads)
    if json:
        write_json(report)
    else:
        _print(report, verbose)


def _check_file(name: str | None, source: options.ModelSource, json: bool) -> None:
    """Print what is found in a model's file; exit code 1 where something is wrong."""
    with Bars() as bars:
        path = find(name, source, bars)
        with load_model(path, LoadOptions(), bars.report) as model:
            findings = list(file_findings(model, bars.report))
    if json:
        write_json({"model": str(path), "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            print(f"{finding.severity:6} {finding.where}: {finding.what}")
        count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
        print(f"{path}: {count}" if findings else f"{path}: nothing wrong or odd was found")
    if any(finding.severity == WRONG for finding in findings):
        sys.exit(1)


def facts(threads: int | None = None) -> dict[str, Any]:
    """All that is known of the machine, as `--json` writes it; threads None: the default."""
    backends = {name: _backend(name) for name in discovery.backend_names()}
    default = backends.get("cpu", {}).get("facts", {}).get("threads")
    workers = threads or settings.threads() or (default if isinstance(default, int) else os.cpu_count()) or 1
    one_thread, all_threads = machine.read_bandwidth(1), machine.read_bandwidth(workers)
    return {
        "graphml": graphml.__version__,
        "installed": _version(DISTRIBUTION) is not None,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "packages": {name: _version(name) for name in _packages()},
        "cpu": machine.cpu_name(),
        "features": machine.cpu_features(),
        "logical_processors": os.cpu_count(),
        "threads": workers,
        "memory_bytes": main_memory(),
        "bandwidth_one_thread": round(one_thread),
        "bandwidth": round(all_threads),
        "cache_folder": str(settings.cache_folder()),
        "models": {name: fetch.is_downloaded(known) for name, known in fetch.MODELS.items()},
        "architectures": discovery.architecture_names(),
        "backends": backends,
    }


def _packages() -> list[str]:
    """Those that matter, and what the extras need that are called as a backend is."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return [*PACKAGES]
    asked = (re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line) for line in lines)
    return [*PACKAGES, *(match[1] for match in asked if match and match[2] in discovery.backend_names())]


def _backend(name: str) -> dict[str, Any]:
    """Whether a backend can be used and why not, and what it says of itself."""
    try:
        backend = discovery.backend(name)
        reason = backend.unavailable()
        facts = dict(backend.describe()) if reason is None else {}
        bandwidth = _bandwidth(backend) if reason is None and backend.reads_back else None
    except Exception as error:  # a backend is a stranger's code: whatever is wrong with it is the answer
        return {"usable": False, "reason": f"{type(error).__name__}: {error}", "facts": {}}
    report = {"usable": reason is None, "reason": reason, "facts": facts}
    return report if bandwidth is None else {**report, "bandwidth": bandwidth}


def _bandwidth(backend: Backend) -> int | None:
    """Bytes a second that a backend's device reads of its own memory; None: not known."""
    device = backend.open(None)
    try:
        return round(device.bandwidth()) or None if isinstance(device, NamedDevice) else None
    finally:
        device.close()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _print(report: dict[str, Any], verbose: bool) -> None:
    if not report["installed"]:
        print(f"graphml       {NOT_INSTALLED}")
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in report["packages"].items())
    memory = report["memory_bytes"]
    print(f"graphml {report['graphml']}, Python {report['python']}")
    print(f"packages      {packages}")
    print(f"processor     {report['cpu']}")
    print(f"features      {' '.join(report['features']) or 'the system does not tell'}")
    print(f"threads       {report['threads']} of {report['logical_processors']} logical processors")
    print(f"memory        {size(memory) if memory else 'the system does not tell'}")
    print(
        f"bandwidth     {report['bandwidth'] / 1e9:.1f} GB/s with {report['threads']} threads, "
        f"{report['bandwidth_one_thread'] / 1e9:.1f} GB/s with one"
    )
    here = [name for name, there in report["models"].items() if there]
    print(
        f"models        {', '.join(here) or 'none'} in {report['cache_folder']} (`graphml models` lists all)"
    )
    architectures = ", ".join(report["architectures"])
    if not verbose:
        architectures = f"{len(report['architectures'])} (--verbose lists them)"
    print(f"architectures {architectures}")
    for name, backend in report["backends"].items():
        state = "usable" if backend["usable"] else f"cannot be used: {backend['reason']}"
        print(f"backend {name}: {state}")
        for key, value in backend["facts"].items():
            print(f"  {key}: {value}")
        if "bandwidth" in backend:
            print(f"  memory is read at {backend['bandwidth'] / 1e9:.1f} GB/s")
