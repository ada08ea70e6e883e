"""A server of two replicas that routes by what they have read, beside one that routes by turns.

    python benchmarks/prefix_affinity.py [MODEL] [--beginnings 24] [--requests 96] [--rate 3] [--rounds 3]

Needs the extra `ray`, and two cores. Requests begin with one of so many long texts of 900 tokens, drawn at
random, more than the cache of one replica holds, and come at random, so many a second. Sides are in turns,
each with a server of its own. Printed are tokens found in caches, and milliseconds to the first token:
medians of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from pathlib import Path

from graphml.loading import fetch
from graphml.simulation import Arrival

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.simulated_cluster import figures, send, server

SHARED, OWN, ANSWER = 900, 60, 24
BY_TURNS = """
from graphml.cluster.prefix_routing import PrefixRouter
choose = PrefixRouter.choose
PrefixRouter.choose = lambda self, text, loads: choose(self, "", loads)
from graphml.cli.main import main
main()
"""
SIDES = {"by beginnings": ("-m", "graphml"), "by turns": ("-c", BY_TURNS)}
SHOWN = ("hit_tokens", "ttft_p50_ms", "ttft_p99_ms")


def requests(count: int, beginnings: int, rate: float) -> list[Arrival]:
    """Requests in the order of their times, the same at each call."""
    numbers, at_s, trace = random.Random(1), 0.0, []
    for _ in range(count):
        at_s += numbers.expovariate(rate)
        trace.append(Arrival(at_s, SHARED + OWN, ANSWER, str(numbers.randrange(beginnings)), SHARED))
    return trace


def main() -> None:
    """A row for each side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    for name, value in (("beginnings", 24), ("requests", 96), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3.0)
    asked = parser.parse_args()
    path, trace = str(fetch.resolve(asked.model)), requests(asked.requests, asked.beginnings, asked.rate)
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(asked.rounds):
        for side, program in SIDES.items():
            with server(path, 2, program) as (address, _):
                asyncio.run(send(address, trace[:4], 10**6))  # compiles
                rows[side].append(figures(asyncio.run(send(address, trace, 0))))
                print(side, rows[side][-1], file=sys.stderr, flush=True)
    print(f"of {asked.requests * (SHARED + OWN)} tokens of prompts about\n| routed | {' | '.join(SHOWN)} |")
    print("|---" * (1 + len(SHOWN)) + "|")
    for side, each in rows.items():
        cells = []
        for name in SHOWN:
            values = sorted(row[name] for row in each)
            cells.append(f"{statistics.median(values):,.0f} ({values[0]:,.0f} to {values[-1]:,.0f})")
        print(f"| {side} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
