"""Result rows: one per test and side, with llama-bench's fields and more.

Knows numbers; measures nothing and formats nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.bench.describe import Environment
from graphml.bench.logit_check import WRONG, LogitCheck
from graphml.bench.measure import Measured, Round
from graphml.bench.test_plan import SideParameters

NOISY = 0.10


@dataclass(frozen=True)
class ResultRow:
    """One test on one side. The first fields are llama-bench's, with its meanings.

    avg_ns, stddev_ns: of a run; avg_ts, stddev_ts: tokens per second; median_ts, q1_ts, q3_ts, min_ts and
    max_ts: the middle of the rounds, its quartiles and ends. noisy: the quartiles are more than 10 % of the
    median apart.
    n_bytes, flops: what a run reads and computes, the same for a peer. gb_s, gflop_s: of the median.
    bandwidth_gb_s: the best of the side's memory between the rounds, by plain reads on the host, by
    copies (read and written) on a device; 0: not measured. of_bandwidth: gb_s as a part of 1 of it.
    bound: the largest share of the time (memory, compute, overhead), and the shares; "" if not known.
    suite_case, wanted, verdict: of a suite, the row's name, its goals and whether it reached them.
    peer, ratio, ratio_q1, ratio_q3: the median of the rounds' ratios of this row's speed to the peer's;
    quartiles. The peer of all rows is the first other engine, or else the second side; it has none itself,
    nor has a wrong side, nor any beside a peer that is wrong. judge: its name, in all rows of several sides.
    correct, logits_nmse: of several sides whether its logits are those of the reference (`logit_check`),
    and their error; "", -1: not checked, or not known. why_unchecked: the reason.
    load_ms, compile_ms: of opening the model, and of making the programs of all tests so far. step_p50_ms,
    step_p90_ms, step_p99_ms: of a decode step, over all rounds; 0: the test has none. peak_bytes: most of the
    side's process in RAM. device_bytes: of the device's memory, now. joules_per_token: of the processor's
    packages, the median of the rounds; 0: not known. others_busy: processors that other processes kept busy.
    side: 0 for the first. device, device_kind, driver: of the side ("": its backend does not report it).
    place, gpu_layers: of the setting; -1: all layers, or as many as fit.
    node: of a cluster, its name; "": this machine.
    refused: the figures ("t/s", "ratio") that were too noisy to be quoted: their quartiles are further apart
    than the median.
    """

    build_commit: str
    cpu_info: str
    backends: str
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    type_k: str
    type_v: str
    n_prompt: int
    n_gen: int
    n_depth: int
    n_parallel: int
    test: str
    test_time: str
    avg_ns: int
    stddev_ns: int
    avg_ts: float
    stddev_ts: float
    median_ts: float
    q1_ts: float
    q3_ts: float
    min_ts: float
    max_ts: float
    noisy: bool
    n_bytes: int
    flops: int
    gb_s: float
    gflop_s: float
    bandwidth_gb_s: float
    of_bandwidth: float
    bound: str
    share_memory: float
    share_compute: float
    share_overhead: float
    peer: str
    ratio: float
    ratio_q1: float
    ratio_q3: float
    quant: str
    resident_bytes: int
    engine_version: str
    level: str
    model_sha256: str
    cpu_cores: int
    cpu_governor: str
    os: str
    python: str
    numpy: str
    llvmlite: str
    load_average: float
    suite_case: str = ""
    wanted: str = ""
    verdict: str = ""
    side: int = 0
    device: str = ""
    device_kind: str = ""
    driver: str = ""
    refused: str = ""
    place: str = ""
    gpu_layers: int = -1
    judge: str = ""
    correct: str = ""
    logits_nmse: float = -1.0
    why_unchecked: str = ""
    load_ms: float = 0.0
    compile_ms: float = 0.0
    step_p50_ms: float = 0.0
    step_p90_ms: float = 0.0
    step_p99_ms: float = 0.0
    peak_bytes: int = 0
    device_bytes: int = 0
    joules_per_token: float = 0.0
    why_no_energy: str = ""
    others_busy: float = 0.0
    node: str = ""
    samples_ns: tuple[int, ...] = ()
    samples_ts: tuple[float, ...] = ()
    samples_ratio: tuple[float, ...] = ()


FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(ResultRow))
SAMPLES = tuple(name for name in FIELDS if name.startswith("samples_"))
SCALARS = tuple(name for name in FIELDS if name not in SAMPLES)


@dataclass(frozen=True)
class Context:
    """Common fields of a setting's rows. about: the sides' descriptions; the first also of the model.

    correct: of each side, if they were checked; else why_unchecked. why_no_energy: if it is not known.
    """

    setting: SideParameters
    about: Sequence[dict[str, Any]]
    environment: Environment
    test_time: str
    model_sha256: str = ""
    correct: Sequence[LogitCheck] = ()
    why_unchecked: str = ""
    why_no_energy: str = ""

    def is_wrong(self, side: int) -> bool:
        """Whether a side's logits are not those of the reference."""
        return bool(self.correct) and self.correct[side].verdict == WRONG


def rows(test_round: Round, context: Context) -> list[ResultRow]:
    """The rows of a test: one per side."""
    return [_row(test_round, index, side, context) for index, side in enumerate(test_round.sides)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, by interpolation; all equal for a single value."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, middle, third


def too_noisy(first: float, middle: float, third: float) -> bool:
    """Whether the quartiles are further apart than the median, so that the median is no figure."""
    return third - first > middle


def _judge(about: Sequence[dict[str, Any]]) -> int | None:
    """The side that others are compared with: the first other engine, or else the second side."""
    if len(about) < 2:
        return None
    others = (i for i, side in enumerate(about) if side["engine_version"] != about[0]["engine_version"])
    return next(others, 1)


def _row(test_round: Round, index: int, measured: Measured, context: Context) -> ResultRow:
    setting, env, model = context.setting, context.environment, context.about[0]
    rates, test = measured.rates, measured.test
    q1, median, q3 = quartiles(rates)
    seconds = test.n_tokens / median
    bandwidth, speed = measured.bandwidth, measured.cost.n_bytes / seconds
    judge = _judge(context.about)
    excluded = judge is None or index == judge or context.is_wrong(index) or context.is_wrong(judge)
    peer = None if excluded else judge
    correct = context.correct[index] if context.correct else LogitCheck()
    p50, p90, p99 = np.percentile(measured.steps, (50, 90, 99)) / 1e6 if measured.steps else (0.0, 0.0, 0.0)
    joules = statistics.median(measured.joules) / test.n_tokens if measured.joules else 0.0
    ratios = [] if peer is None else test_round.ratios(peer, index)
    ratio_q1, ratio, ratio_q3 = quartiles(ratios) if ratios else (0.0, 0.0, 0.0)
    noise = {"t/s": (q1, median, q3), "ratio": (ratio_q1, ratio, ratio_q3)}
    device = context.about[index].get("device") or {"name": env.cpu_info, "kind": "processor", "driver": ""}
    return ResultRow(
        build_commit=env.build_commit, cpu_info=env.cpu_info, backends=measured.side.name,
        model_filename=Path(setting.model).name, model_type=model["model_type"],
        model_size=model["model_size"], model_n_params=model["model_n_params"], n_batch=setting.n_batch,
        n_ubatch=setting.n_ubatch, n_threads=setting.threads, type_k=setting.type_k, type_v=setting.type_v,
        n_prompt=test.n_prompt, n_gen=test.n_gen, n_depth=test.n_depth, n_parallel=test.n_parallel,
        test=test.name, test_time=context.test_time, avg_ns=round(statistics.fmean(measured.ns)),
        stddev_ns=round(_deviation(measured.ns)), avg_ts=statistics.fmean(rates), stddev_ts=_deviation(rates),
        median_ts=median, q1_ts=q1, q3_ts=q3, min_ts=min(rates), max_ts=max(rates),
        noisy=q3 - q1 > NOISY * median, n_bytes=measured.cost.n_bytes, flops=measured.cost.flops,
        gb_s=speed / 1e9, gflop_s=measured.cost.flops / seconds / 1e9, bandwidth_gb_s=bandwidth / 1e9,
        of_bandwidth=speed / bandwidth if bandwidth else 0.0,
        bound=max(measured.bound, key=lambda name: measured.bound[name]) if measured.bound else "",
        share_memory=measured.bound.get("memory", 0.0), share_compute=measured.bound.get("compute", 0.0),
        share_overhead=measured.bound.get("overhead", 0.0),
        peer="" if peer is None else test_round.sides[peer].side.name,
        ratio=ratio, ratio_q1=ratio_q1, ratio_q3=ratio_q3, quant=setting.quant,
        resident_bytes=measured.usage.resident,
        engine_version=context.about[index]["engine_version"], level=context.about[index]["level"],
        model_sha256=context.model_sha256, cpu_cores=env.cpu_cores, cpu_governor=env.cpu_governor, os=env.os,
        python=env.python, numpy=env.numpy, llvmlite=env.llvmlite,
        load_average=env.load_average, side=index, device=device["name"], device_kind=device["kind"],
        driver=device["driver"], refused=", ".join(name for name, of in noise.items() if too_noisy(*of)),
        place=setting.place, gpu_layers=setting.gpu_layers, correct=correct.verdict,
        judge="" if judge is None else test_round.sides[judge].side.name,
        logits_nmse=correct.nmse, why_unchecked=context.why_unchecked,
        load_ms=context.about[index].get("load_ms", 0.0), compile_ms=1e3 * measured.usage.compile_s,
        step_p50_ms=float(p50), step_p90_ms=float(p90), step_p99_ms=float(p99),
        peak_bytes=measured.usage.peak, device_bytes=measured.usage.device, joules_per_token=joules,
        why_no_energy=context.why_no_energy, others_busy=measured.others_busy,
        samples_ns=measured.ns, samples_ts=tuple(rates),
        samples_ratio=tuple(ratios),
    )  # fmt: skip


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
