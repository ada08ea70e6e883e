"""Where a test run's processor time goes: `pytest -p tests.run_costs --costs FOLDER`, then the tables.

    python -m tests.run_costs FOLDER [--by folder|file|function|test] [--most 40]

Each process of the run writes a line for each test to a file of its own in FOLDER: processor seconds of the
process and of ended children, the share of each part (see `PARTS`, and garbage collection), and which kernels
of the CPU it compiled. A part's seconds do not hold those of a part within it. Knows the functions that it
times by name; changes nothing else of the run.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The functions that are timed: part, module, name within it.
PARTS = (
    ("typing", "graphml_cpu.kernel_compilation", "module_texts"),
    ("LLVM", "graphml_cpu.machine_code", "compile_texts"),
    ("LLVM", "graphml_cpu.machine_code", "compile_and_list"),
    ("loading", "graphml_cpu.machine_code", "load"),
    ("OpenCL", "graphml_opencl.programs", "Programs._built"),
    ("OpenCL", "graphml_opencl.driver", "OpenclDriver.wait"),
    ("WGSL", "graphml_wgpu.pipelines", "compiled"),
    ("GPU kernels", "graphml_gpu.language.kernels", "_specialise"),
    ("GPU texts", "graphml_gpu.language", "Specialised.opencl"),
    ("GPU texts", "graphml_gpu.language", "Specialised.wgsl"),
    ("passes", "graphml.compiler.compile", "_apply_passes"),
    ("graphs", "graphml.compiler.compile", "_built"),
)


class Costs:
    """What this process has used since the last line, by part."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._threads = threading.local()
        self.parts: Counter[str] = Counter()
        self.kernels: list[str] = []
        self.children = 0
        self._collecting = 0.0
        self.used = os.times()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time on its thread counts for the part."""

        @functools.wraps(function)
        def measured(*arguments: Any, **named: Any) -> Any:
            if part == "typing":
                self.kernels.append(
                    str(importlib.import_module("graphml_cpu.kernel_cache").file_stem(arguments[0]))
                )
            within = self._within()
            within.append(0.0)
            start = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._add(part, time.thread_time() - start, within)

        return measured

    def _within(self) -> list[float]:
        """Seconds of the parts within each part that this thread is in."""
        if not hasattr(self._threads, "within"):
            self._threads.within = [0.0]
        return self._threads.within  # type: ignore[no-any-return]

    def _add(self, part: str, seconds: float, within: list[float]) -> None:
        self.parts[part] += seconds - within.pop()
        within[-1] += seconds

    def collects(self, phase: str, info: dict[str, int]) -> None:
        """A callback of the garbage collector."""
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            seconds = time.thread_time() - self._collecting
            self.parts[f"collecting {info['generation']}"] += seconds
            self._within()[-1] += seconds

    def write(self, test: str, **more: Any) -> None:
        """A line for all that was used since the last one."""
        now = os.times()
        own = now.user + now.system - self.used.user - self.used.system
        ended = now.children_user + now.children_system - self.used.children_user - self.used.children_system
        parts = {name: round(seconds, 4) for name, seconds in self.parts.items() if seconds > 1e-4}
        line = {"test": test, "own": round(own, 3), "children": round(ended, 3), "started": self.children,
                "wall": round(now.elapsed - self.used.elapsed, 3), "at": time.time(), "parts": parts,
                "kernels": self.kernels, **more}  # fmt: skip
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self.used, self.kernels, self.children = now, [], 0
        self.parts.clear()

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()


_costs: Costs | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FOLDER", help="write what each test costs to a file in FOLDER")
    parser.addoption(
        "--one-in", metavar="N", type=int, default=1, help="run the first of N cases of each test"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    chosen = []
    for item in items:
        name = item.nodeid.split("[")[0]
        if seen[name] % config.getoption("--one-in") == 0:
            chosen.append(item)
        seen[name] += 1
    items[:] = chosen


def pytest_configure(config: pytest.Config) -> None:
    global _costs
    folder = config.getoption("--costs")
    if folder is None or (config.getoption("numprocesses", None) and not hasattr(config, "workerinput")):
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = getattr(config, "workerinput", {}).get("workerid", "main")
    _costs = Costs(Path(folder) / f"{name}-{os.getpid()}.jsonl")
    _costs.write("(start)")
    gc.callbacks.append(_costs.collects)
    _watch_children(_costs)


def _watch_children(costs: Costs) -> None:
    start = subprocess.Popen.__init__

    def counted(*arguments: Any, **named: Any) -> None:
        costs.children += 1
        start(*arguments, **named)

    subprocess.Popen.__init__ = counted  # type: ignore[method-assign]


def holder_of(module: str, name: str) -> Any:
    """What has the function that is timed as an attribute; None where its library is not installed."""
    try:
        holder: Any = importlib.import_module(module)
    except ImportError:
        return None
    *outer, last = name.split(".")
    for one in outer:
        holder = getattr(holder, one, None)
    if not hasattr(holder, last):
        raise pytest.UsageError(f"tests/run_costs.py times {module}.{name}, which is not there")
    return holder


def pytest_collection_finish() -> None:
    if _costs is None:
        return
    _costs.write("(collect)")
    for part, module, name in PARTS:
        holder, last = holder_of(module, name), name.split(".")[-1]
        if holder is not None:
            setattr(holder, last, _costs.timed(part, getattr(holder, last)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    yield
    if _costs is not None:
        _costs.write(item.nodeid)


def pytest_sessionfinish() -> None:
    global _costs
    if _costs is not None:
        _costs.write("(end)")
        gc.callbacks.remove(_costs.collects)
        _costs.close()
        _costs = None


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of each process."""
    found = sorted(folder.glob("*.jsonl"))
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in found}


def _key(test: str, by: str) -> str:
    """What a test is counted with."""
    path = test.split("::")[0]
    if test.startswith("("):
        return test
    return {
        "folder": "/".join(path.split("/")[:2]),
        "file": path,
        "function": test.split("[")[0],
        "test": test,
    }[by]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.run_costs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", choices=["folder", "file", "function", "test"], default="file")
    parser.add_argument("--most", type=int, default=40)
    given = parser.parse_args()
    processes = read(given.folder)
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for lines in processes.values():
        for line in lines:
            key = _key(line["test"], given.by)
            one = totals[key]
            one.update(line["parts"])
            one.update({"all": line["own"] + line["children"], "children": line["children"], "tests": 1,
                        "kernels": len(line["kernels"]), "started": line["started"]})  # fmt: skip
    whole = Counter[str]()
    for one in totals.values():
        whole.update(one)
    names = sorted({name for one in totals.values() for name in one} - {"all", "tests", "kernels", "started"})
    names.sort(key=lambda name: -whole[name])
    print(
        f"{'':60} {'all':>8} {'tests':>6} {'kernels':>7} {'started':>7} "
        + " ".join(f"{n:>12}" for n in names)
    )
    ordered = sorted(totals.items(), key=lambda entry: -entry[1]["all"])[: given.most]
    for key, one in [("everything", whole), *ordered]:
        print(
            f"{key[-60:]:60} {one['all']:8.1f} {one['tests']:6} {one['kernels']:7} {one['started']:7} "
            + " ".join(f"{one[name]:12.1f}" for name in names)
        )
    compiled = Counter(kernel for lines in processes.values() for line in lines for kernel in line["kernels"])
    print(f"{len(compiled)} kernels, {sum(compiled.values())} times; last tests ended at", end=" ")
    ends = {name: lines[-1]["at"] for name, lines in processes.items() if lines}
    print({name: round(end - min(ends.values())) for name, end in ends.items()})


if __name__ == "__main__":
    sys.exit(main())
