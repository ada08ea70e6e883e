"""When requests come and how long they are: by a law with a seed, or rows of a file.

Knows seconds and counts of tokens; nothing of replicas.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import UsageError

SHAPES = ("poisson", "bursty", "diurnal", "even")
COLUMNS = ("arrival_s", "prompt", "answer", "prefix", "prefix_tokens")
BURST_S, BURST_SHARE, BURST_TIMES = 60.0, 0.2, 3.0
"""Of bursty arrivals: in the first 12 s of each 60 s come three times as many as on average."""
SWING = 0.8
"""Of diurnal ones: so much more than the mean at the peak, and less at night."""
GRID = 4096


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, tokens of its prompt and of its answer, which beginning it shares.

    n_prefix: the first tokens of the prompt, which are those of `prefix`; "": it shares none.
    """

    at_s: float
    n_prompt: int
    n_answer: int
    prefix: str = ""
    n_prefix: int = 0


@dataclass(frozen=True)
class Traffic:
    """Arrivals by a law. rate: requests a second, on average over `seconds`; shape: one of `SHAPES`.

    A period of diurnal ones is `seconds`. prompt, answer: tokens on average; tail: the standard deviation of
    their logarithms, 0: all are equally long. share: of requests with one of `prefixes` beginnings of
    `prefix_tokens`, the i-th as often as 1 / i; their prompts are longer by it.
    """

    rate: float
    seconds: float
    shape: str = "poisson"
    prompt: int = 512
    answer: int = 128
    tail: float = 0.0
    share: float = 0.0
    prefixes: int = 8
    prefix_tokens: int = 512

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UsageError(f"shape: wanted one of {', '.join(SHAPES)}; got {self.shape!r}")
        for name in ("rate", "seconds"):
            _number(name, getattr(self, name), 1e-9, math.inf)
        _number("tail", self.tail, 0, 4)
        _number("share", self.share, 0, 1)
        for name in ("prompt", "answer", "prefixes", "prefix_tokens"):
            _whole(name, getattr(self, name))
        if self.rate * self.seconds > 1e8:
            raise UsageError(f"rate: wanted at most 100 million requests; got {self.rate * self.seconds:g}")


def arrivals(traffic: Traffic, seed: int = 0) -> list[Arrival]:
    """Its arrivals in order; the same for the same seed."""
    numbers = np.random.default_rng(seed)
    total = traffic.rate * traffic.seconds
    if traffic.shape == "even":
        at = np.arange(int(total)) / traffic.rate
    else:
        count = numbers.poisson(total)
        grid = np.linspace(0, traffic.seconds, GRID * max(1, int(traffic.seconds / GRID)) + 1)
        heights = np.cumsum(np.concatenate([[0.0], _relative_rate(traffic, (grid[1:] + grid[:-1]) / 2)]))
        at = np.interp(np.sort(numbers.random(count)) * heights[-1], heights, grid)
    lengths = [_lengths(numbers, mean, traffic.tail, len(at)) for mean in (traffic.prompt, traffic.answer)]
    weights = 1 / np.arange(1, traffic.prefixes + 1)
    which = numbers.choice(traffic.prefixes, len(at), p=weights / weights.sum())
    shares = numbers.random(len(at)) < traffic.share
    rows = zip(at.tolist(), *lengths, which.tolist(), shares.tolist(), strict=True)
    more = traffic.prefix_tokens
    return [
        Arrival(when, prompt + more, answer, f"prefix {number}", more)
        if shared
        else Arrival(when, prompt, answer)
        for when, prompt, answer, number, shared in rows
    ]


def _relative_rate(traffic: Traffic, at: Any) -> Any:
    """The rate at some times, beside its mean."""
    if traffic.shape == "bursty":
        quiet = (1 - BURST_SHARE * BURST_TIMES) / (1 - BURST_SHARE)
        return np.where(at % BURST_S < BURST_SHARE * BURST_S, BURST_TIMES, quiet)
    swing = SWING if traffic.shape == "diurnal" else 0.0
    return 1 - swing * np.cos(2 * math.pi * at / traffic.seconds)


def _lengths(numbers: np.random.Generator, mean: int, tail: float, count: int) -> list[int]:
    """Log-normal whole numbers from 1 on, with this mean."""
    values = mean * np.exp(tail * numbers.standard_normal(count) - tail * tail / 2)
    return [int(value) for value in np.clip(np.rint(values), 1, 1 << 24)]


def read_arrivals(path: Path) -> list[Arrival]:
    """Those of a file, in the order of time: CSV with a head, or lines of JSON, with the `COLUMNS`.

    prefix and prefix_tokens may lack. A UsageError names the line that is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: Iterable[Mapping[str, Any]] = (
                _json_rows(file) if path.suffix == ".jsonl" else csv.DictReader(file)
            )
            read = [_arrival(row, f"{path}: row {i}") for i, row in enumerate(rows, 1)]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: wanted rows with {', '.join(COLUMNS)}; {error}") from None
    return sorted(read, key=lambda arrival: arrival.at_s)


def _json_rows(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield row if isinstance(row, dict) else {"": line}


def _arrival(row: Mapping[str, Any], where: str) -> Arrival:
    if unknown := [name for name in row if name not in COLUMNS]:
        raise UsageError(f"{where}: wanted {', '.join(COLUMNS)}; got {unknown[0]!r:.80}")
    at = _number(f"{where}: arrival_s", _parsed(row.get("arrival_s"), float), 0, math.inf)
    counts = [_whole(f"{where}: {name}", _parsed(row.get(name), int)) for name in ("prompt", "answer")]
    prefix = str(row.get("prefix") or "")
    n_prefix = 0
    if prefix or row.get("prefix_tokens"):
        n_prefix = _whole(f"{where}: prefix_tokens", _parsed(row.get("prefix_tokens"), int))
        if not prefix or n_prefix > counts[0]:
            raise UsageError(
                f"{where}: prefix_tokens: wanted a prefix, and at most {counts[0]}; got {n_prefix}"
            )
    return Arrival(at, counts[0], counts[1], prefix, n_prefix)


def _parsed(value: Any, kind: type) -> Any:
    """A CSV's text as a number; itself where it is none."""
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            return value
    return value


def _number(name: str, value: Any, least: float, most: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= most
        or value == math.inf
    ):
        until = "" if most == math.inf else f" to {most:g}"
        raise UsageError(f"{name}: wanted a number from {least:g}{until}; got {value!r:.80}")
    return float(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 24:
        raise UsageError(f"{name}: wanted a whole number from 1 to {1 << 24}; got {value!r:.80}")
    return value
