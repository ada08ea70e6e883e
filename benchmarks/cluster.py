"""Batch jobs on a Ray cluster of this machine beside one process with as many threads, in turns.

    python benchmarks/cluster.py MODEL [--lines N] [--tokens N] [--rounds N] [--cpus N]

Needs the extra `ray`. Sides: one process with CPUS threads, one engine with CPUS of the cluster, CPUS engines
with one each. Each round asks all the same requests; counted are the seconds between the tenth part of the
lines and the last one, so that nobody's start counts. Then requests of a few long beginnings go to engines
by their beginnings and by turns: tokens that were found in caches, and seconds. Last an engine is killed in
the middle of a job: the seconds until it answers again; each line has one answer, or this ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import graphml
from graphml.batch_jobs import BatchDefaults, BatchJob, BatchProgress, BatchSettings
from graphml.cluster import EnginesOptions, engines_on_ray, ray_engines
from graphml.cluster.prefix_routing import PrefixRouter
from graphml.server.local_server import LocalServer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.cluster.ray_nodes import RayNodes  # ends its own processes alone

ENGINE = "ray::_Engine"


class Turns(PrefixRouter):
    """Engines by turns, whatever they have read."""

    def choose(self, text: str, loads: Mapping[str, int]) -> str:
        """The engine that was chosen least often, of those with the fewest requests."""
        return super().choose("", loads)


@contextmanager
def cluster(cpus: int) -> Iterator[str]:
    """A head node with so many CPUs; its address."""
    nodes = RayNodes(Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")), 1, cpus)
    try:
        yield nodes.address
    finally:
        nodes.close()


def requests(path: Path, count: int, beginnings: int = 0) -> Path:
    """Lines with prompts of their own, or with one of so many long beginnings."""
    rows = []
    for i in range(count):
        about = f"You answer questions about country number {i % beginnings}. " * 12 if beginnings else ""
        messages = [{"role": "system", "content": about}] if about else []
        messages.append({"role": "user", "content": f"Question {i}: name {i % 9 + 2} cities by a river."})
        rows.append(json.dumps({"custom_id": f"n{i}", "messages": messages}) + "\n")
    path.write_text("".join(rows))
    return path


def run(
    model: graphml.Model,
    path: Path,
    tokens: int,
    engines: Any,
    seen: Callable[[BatchProgress], None] = lambda _: None,
) -> tuple[float, BatchProgress]:
    """Seconds between the tenth part and the end, and the job's counts."""
    output = path.with_name("out.jsonl")
    output.unlink(missing_ok=True)
    times: list[float] = []

    def report(progress: BatchProgress) -> None:
        times.append(time.monotonic())
        seen(progress)

    settings = BatchSettings(
        16, 1024, defaults=BatchDefaults({"ignore_eos": True}, tokens, {"temperature": 0})
    )
    progress = BatchJob(model, path, output, settings, engines=engines).run(report).progress
    assert progress.failed == 0
    assert len({json.loads(line)["custom_id"] for line in output.open()}) == progress.total
    return times[-1] - times[len(times) // 10], progress


def killed(model: graphml.Model, path: Path, tokens: int, engines: Any) -> float:
    """Seconds from an engine's death until as many engines answer as before."""
    moments: list[float] = []

    def kill(progress: BatchProgress) -> None:
        alive = subprocess.run(
            ["pgrep", "-f", ENGINE], capture_output=True, text=True, check=False
        ).stdout.split()
        if not moments and progress.done >= progress.total // 4:
            os.kill(int(alive[0]), signal.SIGKILL)
            moments.append(time.monotonic())
        elif len(moments) == 1 and len(alive) > 1:
            moments.append(time.monotonic())

    run(model, path, tokens, engines, kill)
    return moments[1] - moments[0] if len(moments) > 1 else float("nan")


def main() -> None:
    """Measure, and print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=160)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", type=int, default=2)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    with cluster(asked.cpus) as address, graphml.load(asked.model, threads=asked.cpus) as model:
        opened = model.opened_by
        assert opened is not None
        sides: dict[str, Any] = {
            "one process": LocalServer,
            "one engine": engines_on_ray(EnginesOptions(address, 1, asked.cpus)),
            f"{asked.cpus} engines": engines_on_ray(EnginesOptions(address, asked.cpus, 1)),
        }
        path = requests(folder / "in.jsonl", asked.lines)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(asked.rounds):
            for name, engines in sides.items():
                n_threads = 1 if "engines" in name else asked.cpus
                model.opened_by = replace(opened, threads=n_threads)
                seconds[name].append(run(model, path, asked.tokens, engines)[0])
        base = seconds["one process"]
        for name, values in seconds.items():
            ratios = sorted(mine / other for mine, other in zip(values, base, strict=True))
            rate = 0.9 * asked.lines * asked.tokens / statistics.median(values)
            print(f"{name}: {rate:.0f} t/s; seconds beside one process {statistics.median(ratios):.3f} "
                  f"({ratios[0]:.3f} to {ratios[-1]:.3f})")  # fmt: skip
        several = sides[f"{asked.cpus} engines"]
        path = requests(folder / "shared.jsonl", asked.lines, beginnings=6)
        for router in (PrefixRouter, Turns) * 2:
            ray_engines.PrefixRouter = router  # type: ignore[misc]
            spent, progress = run(model, path, 8, several)
            tokens = f"{progress.cached_tokens} of {progress.prompt_tokens} tokens found"
            print(f"{router.__name__}: {tokens}, {spent:.2f} s")
        ray_engines.PrefixRouter = PrefixRouter  # type: ignore[misc]
        path = requests(folder / "killed.jsonl", 1000)
        print(f"an engine killed: {killed(model, path, 16, several):.2f} s until it answers again")


if __name__ == "__main__":
    main()
