"""graphml beside the other engines that are installed, on the CPU and in turns: one table.

    python benchmarks/peers.py [MODEL] [--peer NAME[=PYTHON]] [--threads N] [--prompt 512] [--tokens 64]
        [--depth 0,2048] [--rounds 5] [-o md|json]

MODEL: a GGUF file or a short name; unless given smollm2. --peer, once for each: llama.cpp or openvino, and
the Python that has it; unless given all of them in this Python. Every engine is a process of its own with
the same file, threads, lengths and types of keys and values. A test is a prompt, or single tokens that every
engine samples greedily, each after every depth. In a round all engines run the test once, in the opposite
order of the round before; the first round is thrown away. `ratio` is graphml's speed over the engine's of the
same round.

An engine that is not installed, cannot open the model or cannot run a test has a row with the reason.
Logits are not compared: `graphml bench --peer` does that.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphml.bench.describe import environment, sha256
from graphml.bench.measure import measure
from graphml.bench.result_rows import quartiles
from graphml.bench.side import PEERS, ProcessSide
from graphml.bench.test_plan import SideParameters, Test
from graphml.cli.terminal.machine import cpu_name
from graphml.errors import GraphmlError
from graphml.ir.work import Work
from graphml.loading import discovery, fetch

OURS = "graphml"
ALL_TESTS = "all"


@dataclass(frozen=True)
class Row:
    """A test on one engine. why: the reason that it was not measured, "" if it was.

    samples_ts: tokens per second of each round. samples_ratio: graphml's over them, round by round.
    others_busy: processors that other processes kept busy meanwhile.
    """

    test: str
    engine: str
    why: str = ""
    samples_ts: tuple[float, ...] = ()
    samples_ratio: tuple[float, ...] = ()
    others_busy: float = 0.0

    def figures(self) -> dict[str, Any]:
        """All fields, and of the samples their medians, quartiles and extremes."""
        found = asdict(self)
        for name, samples in (("ts", self.samples_ts), ("ratio", self.samples_ratio)):
            if samples:
                q1, median, q3 = quartiles(samples)
                found |= {f"median_{name}": median, f"q1_{name}": q1, f"q3_{name}": q3}
                found |= {f"min_{name}": min(samples), f"max_{name}": max(samples)}
        return found


class Engine(ProcessSide):
    """A side that remembers why it could not prepare or run a test. why: "": it could."""

    why = ""

    def prepare(self, test: Test) -> Work:
        try:
            return super().prepare(test)
        except GraphmlError as error:
            self.why = _reason(self.name, error)
            raise

    def run(self) -> int:
        try:
            return super().run()
        except GraphmlError as error:
            self.why = _reason(self.name, error)
            raise


def _reason(name: str, error: GraphmlError) -> str:
    return str(error).removeprefix(f"{name}: ")


def opened(
    setting: SideParameters, pythons: dict[str, str], stack: ExitStack
) -> tuple[list[Engine], list[Row]]:
    """The peers that open the model, and rows for those that do not."""
    engines, missing = list[Engine](), list[Row]()
    for name, python in pythons.items():
        try:
            engines.append(stack.enter_context(Engine(replace(setting, engine=name), python)))
        except GraphmlError as error:
            missing.append(Row(ALL_TESTS, name, _reason(name, error)))
    return engines, missing


def rows(engines: Sequence[Engine], tests: Sequence[Test], rounds: int) -> Iterator[Row]:
    """Measure every test on all engines, the first of which is graphml: what fails there is raised."""
    for test in tests:
        able, unable = list(engines), list[Row]()
        for one in able:
            one.why = ""
        while True:
            try:
                (found,) = measure(able, [test], rounds + 1, warm=False)
                break
            except GraphmlError:
                failed = [one for one in able if one.why]
                if not failed or engines[0].why:
                    raise
                unable += [Row(test.name, one.name, one.why) for one in failed]
                able = [one for one in able if not one.why]
        for index, side in enumerate(found.sides):
            ratios = tuple(found.ratios(index)[1:]) if index else ()
            engine = side.side.name if index else OURS
            yield Row(test.name, engine, "", tuple(side.rates[1:]), ratios, side.others_busy)
        yield from unable


def table(result: dict[str, Any]) -> str:
    """The result in Markdown: what was measured with what, then the rows."""
    machine, engines = result["environment"], result["engines"].items()
    lines = [
        f"{result['model']} ({result['model_type']}), {result['threads']} threads, keys {result['type_k']}, "
        f"values {result['type_v']}; {machine['cpu_info']}, {machine['cpu_cores']} processors, "
        f"{machine['os']}; commit {machine['build_commit'] or 'unknown'}, {result['test_time']}",
        "",
        *(f"- {name}: {about['engine_version']} ({about['level']})" for name, about in engines),
        "",
        "| test | engine | t/s, median | quartiles | extremes | ratio | quartiles | extremes |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for row in result["rows"]:
        if row["why"]:
            cells = [f"not measured: {row['why'].replace('|', '/')}", *[""] * 5]
        else:
            cells = [*_spread(row, "ts", 1), *_spread(row, "ratio", 2)]
        lines.append("| " + " | ".join([row["test"], row["engine"], *cells]) + " |")
    busy = max((row["others_busy"] for row in result["rows"]), default=0.0)
    if busy > machine["cpu_cores"] / 4:
        lines += [
            "",
            f"busy: other processes kept up to {busy:.1f} processors busy; measure again on a free machine",
        ]
    return "\n".join(lines)


def _spread(row: dict[str, Any], name: str, digits: int) -> list[str]:
    """Median, quartiles and extremes of a figure; empty cells where the row has none."""
    if f"median_{name}" not in row:
        return [""] * 3
    median, q1, q3, low, high = (
        f"{row[f'{which}_{name}']:.{digits}f}" for which in ("median", "q1", "q3", "min", "max")
    )
    return [median, f"{q1} to {q3}", f"{low} to {high}"]


def peers(given: Sequence[str]) -> dict[str, str]:
    """Name -> Python of `--peer`; all peers in this Python if none is given."""
    found: dict[str, str] = {}
    for text in given or PEERS:
        name, _, python = text.partition("=")
        if name not in PEERS:
            raise SystemExit(f"--peer: wanted one of {', '.join(PEERS)}; got {name!r}")
        found[name] = python or sys.executable
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME[=PYTHON]")
    parser.add_argument("--threads", type=int, help="by default the physical cores")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--depth", default="0,2048", help="tokens in the context before, with commas")
    parser.add_argument("--rounds", type=int, default=5, help="those that count")
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    given = parser.parse_args(arguments)
    pythons = peers(given.peer)
    tests = [
        test
        for depth in map(int, given.depth.split(","))
        for test in (Test(given.prompt, 0, depth), Test(0, given.tokens, depth, sampled=True))
    ]
    try:
        path = fetch.resolve(given.model)
        threads = given.threads or int(discovery.backend("cpu").describe().get("threads", 1))
        setting = SideParameters(OURS, str(path), "cpu", threads)
        before = environment(cpu_name())  # the load average is that of other processes
        with ExitStack() as stack:
            ours = stack.enter_context(Engine(setting))
            others, missing = opened(setting, pythons, stack)
            measured = [*rows([ours, *others], tests, given.rounds), *missing]
            about = {OURS: ours.about} | {one.name: one.about for one in others}
    except GraphmlError as error:
        raise SystemExit(f"{error}") from None
    result = {
        "model": Path(path).name, "model_type": about[OURS]["model_type"], "model_sha256": sha256(path),
        "threads": threads, "type_k": setting.type_k, "type_v": setting.type_v,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "environment": asdict(before),
        "engines": about, "rows": [row.figures() for row in measured],
    }  # fmt: skip
    print(json.dumps(result, indent=1) if given.output == "json" else table(result))


if __name__ == "__main__":
    main()
