"""`graphml serve --ray 2` and the simulator on the same trace, side by side.

    python benchmarks/simulated_cluster.py [MODEL] [--rate R] [--seconds S] [--rounds N] [--routing prefix]

Needs the extras `server` and `ray`. First the seconds of a step are measured in as many processes at once as
there are replicas, since these share memory and cores; then what the server adds, by requests that come alone
and all at once. Then each round sends a trace of its own to the server, and simulates the same arrivals with
the numbers of tokens that the server counted. Printed are both and their ratio. Replicas, front and clients
share the machine: it should do nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import graphml
from graphml.bench.server_load import WORDS
from graphml.bench.timed_response import timed_post
from graphml.simulation import Arrival, CostModel, Simulation, SimulationReport, Traffic, arrivals
from graphml.simulation.measuring import measure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.cluster.ray_nodes import RayNodes, _family  # ends its own processes alone

PORT = 18080
PARALLEL, N_CTX = 8, 2048
FIGURES = ("tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "hit_tokens")
QUIET = 0.1
"""The share of the machine that others may have."""
ALONE = 12
"""Requests that come alone, and that come at once, to see what the server adds."""


@dataclass
class Answer:
    """When it was sent, when its tokens came, and how many tokens the server counted."""

    sent_s: float
    token_s: list[float]
    n_prompt: int
    n_cached: int
    n_answer: int


@contextmanager
def server(
    model: str, replicas: int, program: Sequence[str] = ("-m", "graphml")
) -> Iterator[tuple[str, int]]:
    """A Ray cluster with a node for each replica, and a server of one thread each; address, process.

    program: what Python runs as graphml.
    """
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    nodes = RayNodes(Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")), replicas)
    command = [sys.executable, *program, "serve", model, "--ray", nodes.address,
               "--replicas", str(replicas), "--replica-cpus", "1", "-np", str(PARALLEL),
               "-c", str(N_CTX * PARALLEL), "--port", str(PORT)]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        serving = subprocess.Popen(command, stderr=log, stdout=log, env=env)
        try:
            for _ in range(600):
                log.seek(0)
                if "replicas of" in (text := log.read()):
                    break
                if serving.poll() is not None:
                    raise RuntimeError(text[-2000:])
                time.sleep(0.2)
            yield f"http://127.0.0.1:{PORT}", serving.pid
        finally:
            serving.terminate()
            serving.wait()
            nodes.close()


def text_of(arrival: Arrival, number: int) -> str:
    """About as many tokens of words, with those of its beginning first."""
    shared = random.Random(arrival.prefix).choices(WORDS, k=arrival.n_prefix)
    own = random.Random(number).choices(WORDS, k=arrival.n_prompt - arrival.n_prefix - 1)
    return " ".join([*shared, str(number), *own])


async def send(address: str, trace: Sequence[Arrival], first: int) -> list[Answer]:
    """Send requests when they come, and wait for all answers."""
    begin = time.perf_counter() + 0.2

    async def ask(number: int, arrival: Arrival) -> Answer:
        body = {
            "prompt": text_of(arrival, first + number), "max_tokens": arrival.n_answer, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, "model": "default",
        }  # fmt: skip
        raw = json.dumps(body).encode()
        await asyncio.sleep(max(0.0, begin + arrival.at_s - time.perf_counter()))
        return read(*await timed_post(f"{address}/v1/completions", raw, {}, 300.0))

    return await asyncio.gather(*(ask(i, arrival) for i, arrival in enumerate(trace)))


def read(sent_s: float, response: Any) -> Answer:
    """A response as it came."""
    status, lines = response.lines()
    if status != 200:
        raise RuntimeError(response.parts[-1][1])
    token_s, usage = [], {}
    for when, line in lines:
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            if "error" in chunk:
                raise RuntimeError(line)
            if any(choice.get("text") for choice in chunk.get("choices", ())):
                token_s.append(when)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(sent_s, token_s, usage["prompt_tokens"], cached, usage["completion_tokens"])


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """What a report of the simulator says, of real answers."""
    ttft = [1e3 * (answer.token_s[0] - answer.sent_s) for answer in answers]
    gaps = [1e3 * float(gap) for answer in answers for gap in np.diff(answer.token_s)]
    seconds = max(answer.token_s[-1] for answer in answers) - min(answer.sent_s for answer in answers)
    values = [sum(answer.n_answer for answer in answers) / seconds, *np.percentile(ttft, [50, 99]),
              *np.percentile(gaps, [50, 99]), sum(answer.n_cached for answer in answers)]  # fmt: skip
    return dict(zip(FIGURES, map(float, values), strict=True))


def jiffies() -> tuple[int, int, int]:
    """Of the machine: all, those in which it worked, and those of this process and what it has started."""
    every = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    own = sum(map(used, _family(os.getpid())))
    return sum(every), sum(every) - every[3] - every[4], own


def used(process: int) -> int:
    """Those of a process."""
    with suppress(OSError):
        return sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return 0


def others(since: tuple[int, int, int]) -> float:
    """The share of the machine that other processes have had since then."""
    total, busy, own = (now - then for now, then in zip(jiffies(), since, strict=True))
    return max(0, busy - own) / max(1, total)


def wait_for_quiet(seconds: float) -> None:
    """Wait until other processes do next to nothing, at most so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        since = jiffies()
        time.sleep(5)
        if others(since) < QUIET:
            return


def measured(path: str, output: str) -> None:
    """Write the cost model of one thread."""
    with graphml.load(path, threads=1) as model:
        measure(model, PARALLEL, N_CTX).write(Path(output))


def measured_beside(model: str, count: int, folder: Path) -> CostModel:
    """The mean of as many processes that measure at once."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; import simulated_cluster as s; s.measured(*sys.argv[2:])"
    )
    files = [folder / f"cost{i}.json" for i in range(count)]
    home = str(Path(__file__).parent)
    running = [subprocess.Popen([sys.executable, "-c", code, home, model, str(file)]) for file in files]
    if any(process.wait() for process in running):
        raise RuntimeError("measuring has failed")
    costs = [CostModel.read(file) for file in files]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(cost, name) for cost in costs)

    knots = [rows for rows, _ in costs[0].rows_s]
    rows_s = [(rows, statistics.fmean(cost.step_s(rows, 0, 0) for cost in costs)) for rows in knots]
    names = ("output_s", "context_s", "chunk_context_s", "error")
    return replace(costs[0], rows_s=tuple(rows_s), **{name: mean(name) for name in names})


def with_server(cost: CostModel, address: str, front: int, replicas: int) -> CostModel:
    """The same with what the server adds to a request that comes alone, and to a token of full slots."""
    lone = [Arrival(0.8 * i, 40, 24) for i in range(ALONE)]
    answers = asyncio.run(send(address, lone, 1_000_000))
    waits = [answer.token_s[0] - answer.sent_s for answer in answers[2:]]
    request_s = statistics.median(waits) - Simulation(cost, lone[:1]).run().ttft_p50_ms / 1e3
    busy = [Arrival(0.0, 40, 96) for _ in range(replicas * PARALLEL)]
    before = used(front)
    answers = asyncio.run(send(address, busy, 2_000_000))
    part_s = (used(front) - before) / os.sysconf("SC_CLK_TCK") / sum(each.n_answer for each in answers)
    real = figures(answers)["itl_p50_ms"] / 1e3
    step_s = Simulation(cost, busy, replicas).run().itl_p50_ms / 1e3
    token_s = max(0.0, (real - step_s) / PARALLEL)
    print(f"the server adds {1e3 * request_s:.1f} ms to a request, {1e6 * token_s:.0f} us to a token")
    print(f"the front has {1e6 * part_s:.0f} us of CPU for a token that it passes on")
    return replace(cost, request_s=max(0.0, request_s), output_s=cost.output_s + token_s, part_s=part_s)


def main() -> None:
    """Measure, simulate, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--shape", default="poisson")
    parser.add_argument("--cost", type=Path, help="a cost model that was measured before")
    parser.add_argument("--save", type=Path, help="where to keep the cost model with what the server adds")
    asked = parser.parse_args()
    traffic = Traffic(asked.rate, asked.seconds, asked.shape, 160, 64, 0.6, 0.5, 4, 192)
    cost = CostModel.read(asked.cost) if asked.cost else None
    wait_for_quiet(asked.patience)
    if cost is None:
        cost = measured_beside(asked.model, asked.replicas, Path(tempfile.mkdtemp()))
    print(f"cost model: {cost}")
    ratios: dict[str, list[float]] = {name: [] for name in FIGURES}
    with server(asked.model, asked.replicas) as (address, front):
        asyncio.run(send(address, [Arrival(0.0, 100, 16) for _ in range(32)], 3_000_000))
        wait_for_quiet(asked.patience)
        cost = with_server(cost, address, front, asked.replicas)
        if asked.save:
            cost.write(asked.save)
        for number in range(asked.rounds):
            trace = [
                replace(arrival, n_prompt=min(arrival.n_prompt, 1500),
                        prefix=f"{arrival.prefix} of {number}" * bool(arrival.prefix))
                for arrival in arrivals(traffic, number)
            ]  # fmt: skip
            wait_for_quiet(asked.patience)
            since = jiffies()
            answers = asyncio.run(send(address, trace, 1_000 * number))
            beside = others(since)
            real = figures(answers)
            counted = [
                replace(arrival, n_prompt=answer.n_prompt, n_answer=answer.n_answer)
                for arrival, answer in zip(trace, answers, strict=True)
            ]
            report: SimulationReport = Simulation(cost, counted, asked.replicas).run()
            print(f"round {number}: {len(trace)} requests, others had {beside:.0%} of the machine, "
                  f"simulated {report.busy:.0%} busy")  # fmt: skip
            for name in FIGURES:
                said = getattr(report, name)
                ratios[name].append(said / real[name] if real[name] else float("nan"))
                print(
                    f"  {name:14} server {real[name]:10.1f}   simulated {said:10.1f}   {ratios[name][-1]:.2f}"
                )
    for name, values in ratios.items():
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{name}: simulated / server {statistics.median(values):.2f} {spread}")


if __name__ == "__main__":
    main()
