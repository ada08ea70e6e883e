"""What each fusion is worth: decode and prefill with all fusions, without each one, and without any.

    python benchmarks/fusions.py [MODEL ...] [--threads N] [--seconds N] [--instances N] [--cpu-time]
        [--out FILE]

MODEL: a path or a short name; unless given SmolLM2-135M-Instruct, and small models with random weights that
have the experts, norms and gates that it lacks.

A setting's times differ by where its arena and its values happen to lie, so one instance of each says little.
Each setting is opened anew `--instances` times. Within an instance all settings take turns, in another order
each time, and each is compared with "all" of the same round: a row is the median of these ratios, with the
quarters below and above. The row "all, again" is a second instance of the same setting: what it differs by is
noise, and so is less than that in any other row. A setting that takes more than twice as long has one counted
round in each instance. --cpu-time, with --threads 1, counts the seconds that the processor worked for this
process, for machines that others use meanwhile. Decode: single tokens after a prompt of 32. Prefill: 256
tokens into an empty context. The first round of each instance is thrown away.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import graphml
from graphml.bench.made_models import bench_model
from graphml.bench.shapes import Shape
from graphml.loading import fetch

DECODE_TOKENS, PREFILL_TOKENS, PROMPT = 12, 256, 32
AGAIN = "all, again"


@dataclass
class Row:
    """A setting: its switches, the ratios to "all" of each round, and what its programs consist of."""

    name: str
    switches: str
    decode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    decode_seconds: list[float] = field(default_factory=list)
    prefill_seconds: list[float] = field(default_factory=list)
    steps: int = 0
    barriers: float = 0.0
    fewer: int = 0


class Instance:
    """A model opened with a row's fusions."""

    def __init__(self, row: Row, path: Path, threads: int | None) -> None:
        self.row = row
        self.model = graphml.load(path, threads=threads, fuse=row.switches)
        self.session = self.model.session(n_ctx=PREFILL_TOKENS + PROMPT, seed=0)
        compiled = self.model.executor.compiled(1, 1)
        self.counts = compiled.fusions.counts
        (tape,) = compiled.program.tapes  # type: ignore[attr-defined]  # the CPU backend's program
        row.steps = len(tape.steps)
        row.barriers = sum(step.barrier for step in tape.steps) / max(self.model.config.n_layer, 1)

    def take(self, ids: Sequence[int], clock: Callable[[], float]) -> tuple[float, float]:
        """Seconds per decoded token, seconds per token of a prompt."""
        self.session.rewind(0)
        self.session.eval(list(ids[:PROMPT]))
        times = []
        for token in ids[PROMPT : PROMPT + DECODE_TOKENS]:
            start = clock()
            self.session.eval([token])
            times.append(clock() - start)
        self.session.rewind(0)
        start = clock()
        self.session.eval(list(ids[:PREFILL_TOKENS]))
        return statistics.median(times), (clock() - start) / PREFILL_TOKENS

    def close(self) -> None:
        """Give everything back, so that the next instance lies elsewhere."""
        self.model.close()


def rows_of(path: Path, threads: int | None) -> list[Row]:
    """All, all again, without each fusion that the model has, without those that replace each other, none."""
    first = Row("all", "all")
    instance = Instance(first, path, threads)
    counts = instance.counts
    instance.close()
    rows = [first, Row(AGAIN, "all")]
    rows += [Row(f"all but `{name}`", f"-{name}", fewer=count) for name, count in counts.items()]
    groups = [("qkv", "mul_mat_glu"), ("qkv", "mul_mat_glu", "add_rms_norm", "route_experts")]
    for names in groups:
        if sum(any(made.startswith(name.removesuffix("_glu")) for made in counts) for name in names) > 1:
            label = " and ".join(f"`{name}`" for name in names)
            rows.append(Row(f"all but {label}", ",".join(f"-{name}" for name in names)))
    return [*rows, Row("none", "none")]


def measure(
    path: Path, threads: int | None, seconds: float, instances: int, clock: Callable[[], float]
) -> list[Row]:
    """Take rounds for about so many seconds."""
    rows = rows_of(path, threads)
    for number in range(instances):
        opened = [Instance(row, path, threads) for row in random.Random(number).sample(rows, len(rows))]
        vocabulary = opened[0].model.config.n_vocab
        ids = np.random.default_rng(number).integers(0, vocabulary, PREFILL_TOKENS).tolist()
        end = time.perf_counter() + seconds / instances
        count, slow = 0, list[Instance]()
        while count < 3 or time.perf_counter() < end:
            found = {
                one.row.name: one.take(ids, clock)
                for one in random.Random(1000 * number + count).sample(opened, len(opened))
            }
            if count:  # the first round warms caches up
                add(rows, found)
                opened, slow = (
                    [one for one in opened if not is_slow(one.row)],
                    [*slow, *(one for one in opened if is_slow(one.row))],
                )
            count += 1
            if sys.stderr.isatty():
                print(f"\r{path.name}: instance {number + 1}, round {count}", end="", file=sys.stderr)
        for one in (*opened, *slow):
            one.close()
    return rows


def is_slow(row: Row) -> bool:
    """Whether further rounds would say little that the first has not said."""
    return row.decode[-1] > 2


def add(rows: Sequence[Row], found: dict[str, tuple[float, float]]) -> None:
    """A round's times, as ratios to those of "all" in the same round."""
    for row in (row for row in rows if row.name in found):
        decode, prefill = found[row.name]
        row.decode_seconds.append(decode)
        row.prefill_seconds.append(prefill)
        row.decode.append(decode / found["all"][0])
        row.prefill.append(prefill / found["all"][1])


def spread(ratios: Sequence[float]) -> str:
    """`1.013 (1.008 to 1.020)`: the median, and between which the middle half lies."""
    low, middle, high = statistics.quantiles(ratios if len(ratios) > 1 else [*ratios, *ratios], n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown rows: times, and how much slower than with all fusions."""
    lines = [
        "| on | decode, us a token | relative | prefill, us a token | relative | steps | barriers a layer |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = statistics.median(row.decode_seconds), statistics.median(row.prefill_seconds)
        lines.append(
            f"| {row.name} | {times[0] * 1e6:.0f} | {spread(row.decode)} | {times[1] * 1e6:.1f} | "
            f"{spread(row.prefill)} | {row.steps} | {row.barriers:.1f} |"
        )
    return lines


# Random weights and what SmolLM2 lacks: experts, norms of heads, LayerNorm, gates with GELU.
SIZES = {"n_vocab": 4096, "n_embd": 512, "n_layer": 6, "n_head": 8}
RANDOM = (
    Shape("fusions-qwen3moe", "qwen3moe", **SIZES, n_head_kv=2, n_ff=256, head_dim=64, head_norms=True,
          n_expert=16, n_expert_used=4),
    Shape("fusions-gemma", "gemma", **SIZES, n_head_kv=2, n_ff=2048, head_dim=64, tied=True),
    Shape("fusions-phi2", "phi2", **SIZES, n_head_kv=8, n_ff=2048, n_rot=32, gated=False, biased=True),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=240.0, help="about so long for all models together")
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    text = []
    given = [fetch.resolve(name) for name in arguments.models]
    paths = given or [fetch.resolve(None), *(bench_model(shape, "Q8_0") for shape in RANDOM)]
    for path in paths:
        share = arguments.seconds / len(paths)
        rows = measure(path, arguments.threads, share, arguments.instances, clock)
        text += [heading(path, rows, arguments), "", *table(rows), ""]
    print("\n".join(text))
    if arguments.out is not None:
        arguments.out.write_text("\n".join(text))


def heading(path: Path, rows: Sequence[Row], arguments: argparse.Namespace) -> str:
    """What was measured, on what and how often."""
    kind = "processor's time" if arguments.cpu_time else "wall time"
    return (
        f"{path.name}, {platform.machine()}, {os.cpu_count()} processors, "
        f"{arguments.threads or 'default'} threads, {kind}, {len(rows[0].decode)} rounds in "
        f"{arguments.instances} instances, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
